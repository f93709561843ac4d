//! The input of a command: its caller, its arguments, and where its events go.

use std::borrow::Cow;
use std::sync::Arc;

use tally_core::batch::Events;
use tally_core::event::Correction;
use tally_core::key::KeyRef;
use tally_core::time::Millis;

use crate::admission::{self, Action, Caller, Denied};
use crate::policy::Consistency;
use crate::resp::clients::RespClient;
use crate::resp::errors::{NOT_AN_INTEGER, failure};
use crate::resp::reply::{ProtocolVersion, Reply};
use crate::resp::server::RespServer;
use crate::resp::session::WatchedKeys;
use crate::resp::turn::{CommandStatus, Turn};
use crate::resp::wire::{Args, integer};
use crate::service::Failure;

/// The caller, the time and the server. The same for all requests that arrived together.
pub struct CallContext<'a> {
    /// The server.
    pub server: &'a Arc<RespServer>,
    /// The connection's entry in `CLIENT LIST`.
    pub client: &'a Arc<RespClient>,
    /// The caller.
    pub caller: Caller,
    /// The time on the server's clock.
    pub now: Millis,
    /// The counters that the connection's next transaction depends on.
    pub watched: &'a WatchedKeys,
    /// The minimum consistency of reads: after `WATCH`, they must not be older than what it read.
    pub reads_min: Consistency,
}

/// Why a command was not executed.
#[derive(Debug)]
pub enum CommandError {
    /// It was invalid: the text of the error.
    Refused(Cow<'static, str>),
    /// The server cannot execute it now.
    Failed(Failure),
}

impl CommandError {
    /// How it is counted.
    pub fn status(&self) -> CommandStatus {
        match self {
            CommandError::Refused(_) => CommandStatus::Refused,
            CommandError::Failed(_) => CommandStatus::Failed,
        }
    }

    /// The text of the error reply.
    pub fn text(self) -> Cow<'static, str> {
        match self {
            CommandError::Refused(text) => text,
            CommandError::Failed(error) => failure(&error).into(),
        }
    }
}

impl From<&'static str> for CommandError {
    fn from(text: &'static str) -> Self {
        CommandError::Refused(text.into())
    }
}

impl From<String> for CommandError {
    fn from(text: String) -> Self {
        CommandError::Refused(text.into())
    }
}

impl From<Denied> for CommandError {
    fn from(denied: Denied) -> Self {
        CommandError::Refused(format!("ERR {denied}").into())
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        CommandError::Failed(failure)
    }
}

/// Where the events of a command go.
pub enum EventTarget<'t> {
    /// With those of other connections.
    Turn(&'t mut Turn),
    /// Into a transaction, which is one group.
    Transaction(&'t mut Events),
}

/// One command on counters: parses its arguments, has its keys admitted, and adds its events. Nothing may fail after
/// the first event has been added.
pub struct CommandCall<'a, 't> {
    /// The arguments. Their number is valid.
    pub args: Args<'a>,
    /// The caller.
    pub context: &'t CallContext<'t>,
    /// Where events go.
    pub target: EventTarget<'t>,
}

impl<'a> CommandCall<'a, '_> {
    /// Admits the first argument as a key.
    #[inline]
    pub fn key(&self, action: Action) -> Result<KeyRef<'a>, CommandError> {
        let key = self.args.get(1).unwrap_or_default();
        Ok(self.context.server.service.admission().admit(&self.context.caller, key, action)?)
    }

    /// Admits all arguments as keys.
    pub fn keys(&self, action: Action) -> Result<AdmittedKeys<'a>, CommandError> {
        let service = &self.context.server.service;
        let mut consistency = None;
        for key in self.args.iter().skip(1) {
            let key = service.admission().admit(&self.context.caller, key, action)?;
            consistency = consistency.max(Some(service.consistency(key)));
        }
        Ok(AdmittedKeys { args: self.args, consistency: consistency.unwrap_or_default() })
    }

    /// The argument at this index as a number.
    #[inline]
    pub fn integer(&self, at: usize) -> Result<i64, CommandError> {
        integer(self.args.get(at).unwrap_or_default()).ok_or_else(|| NOT_AN_INTEGER.into())
    }

    /// The ledger entry of a correction. The protocol has no field for a reason, so the command is the reason.
    pub fn correction(&self, command: &str) -> Result<Correction, CommandError> {
        Ok(admission::correction(&self.context.caller, command)?)
    }

    /// Where the events of a command that only reads this key go.
    #[inline]
    pub fn reads(&mut self, key: KeyRef<'_>) -> Result<&mut Events, CommandError> {
        self.reads_with(self.context.server.service.consistency(key))
    }

    /// Where the events of a command that only reads go.
    #[inline]
    pub fn reads_with(&mut self, consistency: Consistency) -> Result<&mut Events, CommandError> {
        let consistency = consistency.max(self.context.reads_min);
        match &mut self.target {
            EventTarget::Turn(turn) => Ok(turn.read_events(&self.context.server.service, consistency)?),
            EventTarget::Transaction(events) => Ok(events),
        }
    }

    /// Where the events of a command that changes this key go.
    #[inline]
    pub fn writes(&mut self, key: KeyRef<'_>) -> Result<&mut Events, CommandError> {
        self.writes_with(self.context.server.service.consistency(key))
    }

    /// Where the events of any other command go.
    #[inline]
    pub fn writes_with(&mut self, consistency: Consistency) -> Result<&mut Events, CommandError> {
        match &mut self.target {
            EventTarget::Turn(turn) => Ok(turn.events(&self.context.server.service, consistency)?),
            EventTarget::Transaction(events) => Ok(events),
        }
    }
}

/// Arguments that were admitted as keys.
#[derive(Clone, Copy)]
pub struct AdmittedKeys<'a> {
    args: Args<'a>,
    /// The strongest consistency of any of them.
    pub consistency: Consistency,
}

impl<'a> AdmittedKeys<'a> {
    /// Number of keys.
    pub fn len(self) -> u32 {
        u32::try_from(self.args.len() - 1).unwrap_or(u32::MAX)
    }

    /// The keys in order.
    pub fn iter(self) -> impl Iterator<Item = KeyRef<'a>> {
        // Each was checked when it was admitted.
        self.args.iter().skip(1).filter_map(|key| KeyRef::new(key).ok())
    }
}

/// A command that calls the engine itself.
pub struct EngineCall {
    /// The server.
    pub server: Arc<RespServer>,
    /// The caller.
    pub caller: Caller,
    /// The version of the protocol.
    pub version: ProtocolVersion,
    /// The counters that the connection's next transaction depends on.
    pub watched: WatchedKeys,
}

impl EngineCall {
    /// A reply in the connection's version of the protocol.
    pub fn reply(&self, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, self.version));
        out
    }
}
