//! The suite's calls as Redis commands.

use std::sync::Mutex;

use tally_contract::{Ability, CallStep, EngineClient, Failure};
use tally_core::consistency::Consistency;
use tally_core::event::{AddExpiry, Change, Condition, Deadline, Details, Expiry, ExpiryCondition, Field};
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Outcome, Receipt, Refusal, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{EngineError, Page, PageRequest, SubmitOptions};
use tally_core::time::Millis;

use crate::harness::Server;
use crate::harness::wire::{Reply, Resp, request};
use crate::hosts::{ProtocolClient, ServerAddress};
use crate::refusals::{Answered, complete};

/// Maximum number of commands that are sent before their replies are read. Both sides have room for them.
const PIPELINE_MAX: usize = 256;

pub struct RedisCalls {
    address: String,
    idle: Mutex<Vec<Resp>>,
    server: Option<Mutex<Server>>,
    prefix: String,
}

impl ProtocolClient for RedisCalls {
    const LACKS: &'static [Ability] = &[
        Ability::Stop,
        Ability::AnyConsistency,
        Ability::Corrections,
        Ability::Actors,
        Ability::Bounds,
        Ability::Runs,
        Ability::Statistics,
        Ability::Ledger,
        Ability::Listing,
        Ability::FreshListing,
    ];
    const LACKS_IN_CLUSTER: &'static [Ability] = &[Ability::Restart, Ability::AnyNamespace, Ability::Count];

    fn to(address: &ServerAddress, prefix: String) -> RedisCalls {
        RedisCalls { address: address.redis.clone(), idle: Mutex::default(), server: None, prefix }
    }

    fn owning(server: Server) -> RedisCalls {
        let calls = RedisCalls::to(&ServerAddress::of(&server), String::new());
        RedisCalls { server: Some(Mutex::new(server)), ..calls }
    }

    fn take_written(&self) -> Token {
        Token::default()
    }

    fn server(&self) -> Option<&Mutex<Server>> {
        self.server.as_ref()
    }
}

fn inexpressible(what: &impl std::fmt::Debug) -> Failure {
    format!("the Redis protocol cannot express {what:?}").into()
}

type Command = Vec<Vec<u8>>;
/// What the replies to the commands of a step mean.
type Meaning = Box<dyn Fn(&[Reply]) -> Result<Answered, Failure>>;

/// One step as commands.
struct Translated {
    commands: Vec<Command>,
    meaning: Meaning,
}

fn command(name: &str, args: &[&[u8]]) -> Command {
    [name.as_bytes()].iter().chain(args).map(|arg| arg.to_vec()).collect()
}

fn text(number: &impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

impl RedisCalls {
    fn stored(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), key].concat()
    }

    /// Sends commands over one connection and returns their replies.
    fn run(&self, commands: &[Command]) -> Result<Vec<Reply>, Failure> {
        let idle = self.idle.lock().unwrap().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let mut connection = Resp::try_to(&self.address)?;
                connection.say("HELLO 3");
                connection
            }
        };
        let mut replies = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(PIPELINE_MAX) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|command| request(command)).collect();
            connection.send(&bytes)?;
            for _ in chunk {
                replies.push(connection.reply()?);
            }
        }
        self.idle.lock().unwrap().push(connection);
        Ok(replies)
    }

    fn translate(&self, step: &CallStep) -> Result<Translated, Failure> {
        let CallStep::Event { key, change, id, details } = step else { return Err(inexpressible(step)) };
        let (stored, key) = (self.stored(key), key.clone());
        let read = || command("GET", &[&stored]);
        let (commands, meaning): (Vec<Command>, Meaning) = match (change, details) {
            (Change::Add(delta), None) => {
                let mut add = command("TALLY.ADD", &[&stored, &text(delta)]);
                if let Some(id) = id {
                    add.extend([b"ID".to_vec(), id.clone().into_bytes()]);
                }
                (vec![add], Box::new(move |replies| added(&key, &replies[0])))
            }
            (Change::Add(delta), Some(details)) => {
                let Details { bounds: None, expiry: Some(expiry), .. } = &**details else {
                    return Err(inexpressible(details));
                };
                let AddExpiry { at: Some(Deadline::At(at)), only_if_none } = expiry else {
                    return Err(inexpressible(expiry));
                };
                let mut add = command("INCREX", &[&stored, b"BYINT", &text(delta), b"PXAT", &text(&at.0)]);
                if *only_if_none {
                    add.push(b"ENX".to_vec());
                }
                let delta = *delta;
                (vec![add, read()], Box::new(move |replies| bounded(&key, delta, replies)))
            }
            (Change::Set { value, when, expiry, .. }, None) if id.is_none() => {
                let (value, when) = (*value, *when);
                let mut set = command("SET", &[&stored, &text(&value)]);
                set.extend(match when {
                    Condition::Always => None,
                    Condition::Absent => Some(b"NX".to_vec()),
                    Condition::Present => Some(b"XX".to_vec()),
                    Condition::Equals(_) => return Err(inexpressible(step)),
                });
                set.extend(match expiry {
                    Expiry::Keep => vec![b"KEEPTTL".to_vec()],
                    Expiry::Never => Vec::new(),
                    Expiry::At(Deadline::At(at)) => vec![b"PXAT".to_vec(), text(&at.0)],
                    Expiry::At(Deadline::After(millis)) => vec![b"PX".to_vec(), text(millis)],
                });
                set.push(b"GET".to_vec());
                (vec![set, read()], Box::new(move |replies| was_set(&key, value, when, replies)))
            }
            (Change::Delete(_), None) if id.is_none() => {
                (vec![command("GETDEL", &[&stored])], Box::new(move |replies| deleted(&key, &replies[0])))
            }
            (Change::Expire { at, when }, None) => {
                let expire = expire_command(&stored, *at, *when).ok_or_else(|| inexpressible(step))?;
                (vec![expire, read()], Box::new(move |replies| expired(&key, replies)))
            }
            // A read has no request id in any protocol.
            (Change::Read(Field::Value), None) => {
                let meaning = move |replies: &[Reply]| Ok(Answered::known(&key, of_value(value_of(&replies[0])?)));
                (vec![read()], Box::new(meaning))
            }
            (Change::Read(Field::Expiry), None) => {
                let meaning = move |replies: &[Reply]| {
                    let at = Some(integer(&replies[0])?).filter(|at| *at != -2);
                    Ok(Answered::known(&key, of_value(at)))
                };
                (vec![command("PEXPIRETIME", &[&stored])], Box::new(meaning))
            }
            _ => return Err(inexpressible(step)),
        };
        Ok(Translated { commands, meaning })
    }

    /// Steps that are not a group, in one pipeline.
    fn pipeline(&self, steps: &[CallStep]) -> Result<Vec<Answered>, Failure> {
        let translated = steps.iter().map(|step| self.translate(step)).collect::<Result<Vec<_>, _>>()?;
        let commands: Vec<Command> = translated.iter().flat_map(|step| step.commands.clone()).collect();
        understood(&translated, &self.run(&commands)?)
    }

    /// A group as a transaction.
    fn transaction(&self, steps: &[CallStep]) -> Result<Vec<Answered>, Failure> {
        let translated = steps.iter().map(|step| self.translate(step)).collect::<Result<Vec<_>, _>>()?;
        let commands = translated.iter().flat_map(|step| step.commands.clone());
        let all: Vec<Command> =
            [command("MULTI", &[])].into_iter().chain(commands).chain([command("EXEC", &[])]).collect();
        let replies = self.run(&all)?;
        let queued = &replies[1..replies.len() - 1];
        assert!(queued.iter().all(|reply| *reply == Reply::Simple("QUEUED".into())), "{queued:?}");
        match replies.last() {
            Some(Reply::Many(_, replies)) => understood(&translated, replies),
            other => Err(format!("EXEC: {other:?}").into()),
        }
    }
}

fn understood(translated: &[Translated], replies: &[Reply]) -> Result<Vec<Answered>, Failure> {
    let mut rest = replies;
    let mut answered = Vec::with_capacity(translated.len());
    for Translated { commands, meaning } in translated {
        let (own, others) = rest.split_at_checked(commands.len()).ok_or("too few replies")?;
        answered.push(meaning(own)?);
        rest = others;
    }
    Ok(answered)
}

fn expire_command(stored: &[u8], at: Option<Deadline>, when: ExpiryCondition) -> Option<Command> {
    let mut expire = match (at, when) {
        (None, ExpiryCondition::Always) => return Some(command("PERSIST", &[stored])),
        (None, _) => return None,
        (Some(Deadline::At(at)), _) => command("PEXPIREAT", &[stored, &text(&at.0)]),
        (Some(Deadline::After(millis)), _) => command("PEXPIRE", &[stored, &text(&millis)]),
    };
    let flags: &[&str] = match when {
        ExpiryCondition::Always => &[],
        ExpiryCondition::IfNone => &["NX"],
        ExpiryCondition::IfSome => &["XX"],
        ExpiryCondition::IfLater => &["GT"],
        ExpiryCondition::IfEarlier => &["LT"],
        ExpiryCondition::IfSomeAndEarlier => &["XX", "LT"],
    };
    expire.extend(flags.iter().map(|flag| flag.as_bytes().to_vec()));
    Some(expire)
}

fn integer(reply: &Reply) -> Result<i64, Failure> {
    match reply {
        Reply::Integer(number) => Ok(*number),
        Reply::Bulk(text) => Ok(std::str::from_utf8(text)?.parse()?),
        other => Err(format!("not a number: {other:?}").into()),
    }
}

/// The reply to `GET`; `None` for a counter that does not exist.
fn value_of(reply: &Reply) -> Result<Option<i64>, Failure> {
    if is_null(reply) { Ok(None) } else { integer(reply).map(Some) }
}

fn is_null(reply: &Reply) -> bool {
    *reply == Reply::Line("_".into())
}

fn of_value(value: Option<i64>) -> Outcome {
    Outcome { value: value.unwrap_or_default(), exists: value.is_some(), ..Outcome::EMPTY }
}

/// The field of a map.
fn field<'a>(reply: &'a Reply, name: &str) -> Result<&'a Reply, Failure> {
    let Reply::Many(b'%', items) = reply else { return Err(format!("not a map: {reply:?}").into()) };
    let pair = items.chunks(2).find(|pair| pair[0] == Reply::Bulk(name.as_bytes().to_vec()));
    Ok(&pair.ok_or_else(|| format!("no {name}: {reply:?}"))?[1])
}

fn boolean(reply: &Reply) -> Result<bool, Failure> {
    match reply {
        Reply::Line(text) if text == "#t" => Ok(true),
        Reply::Line(text) if text == "#f" => Ok(false),
        other => Err(format!("not a boolean: {other:?}").into()),
    }
}

fn time(reply: &Reply) -> Result<Millis, Failure> {
    Ok(Millis(u64::try_from(integer(reply)?)?))
}

fn optional_time(reply: &Reply) -> Result<Option<Millis>, Failure> {
    if is_null(reply) { Ok(None) } else { time(reply).map(Some) }
}

fn refused(key: &[u8], error: &str) -> Result<Answered, Failure> {
    let duplicate = error.contains("this ID was refused before");
    if error.contains("would overflow") {
        Ok(Answered::refused(key, Refusal::Overflow, None, duplicate))
    } else if error.contains("this ID was used before for another") {
        Ok(Answered::refused(key, Refusal::PayloadMismatch, None, false))
    } else {
        Err(error.into())
    }
}

fn added(key: &[u8], reply: &Reply) -> Result<Answered, Failure> {
    if let Reply::Error(error) = reply {
        return refused(key, error);
    }
    let duplicate = field(reply, "duplicate")?;
    let outcome = Outcome {
        value: integer(field(reply, "value")?)?,
        applied: integer(field(reply, "applied")?)?,
        exists: true,
        exact: boolean(field(reply, "exact")?)?,
        duplicate: if is_null(duplicate) { None } else { Some(boolean(duplicate)?) },
        refusal: None,
        at: time(field(reply, "as_of")?)?,
    };
    Ok(Answered::known(key, outcome))
}

/// `INCREX` answers a refusal with the value and zero.
fn bounded(key: &[u8], delta: i64, replies: &[Reply]) -> Result<Answered, Failure> {
    match &replies[0] {
        Reply::Error(error) => refused(key, error),
        Reply::Many(_, pair) => {
            let (value, applied) = (integer(&pair[0])?, integer(&pair[1])?);
            if applied == 0 && delta != 0 {
                return Ok(Answered::refused(key, Refusal::Bound, Some(value), false));
            }
            let exists = value_of(&replies[1])?.is_some();
            Ok(Answered::known(key, Outcome { value, applied, exists, ..Outcome::EMPTY }))
        }
        other => Err(format!("not a pair: {other:?}").into()),
    }
}

fn was_set(key: &[u8], value: i64, when: Condition, replies: &[Reply]) -> Result<Answered, Failure> {
    if let Reply::Error(error) = &replies[0] {
        return Err(error.as_str().into());
    }
    let (before, after) = (value_of(&replies[0])?, value_of(&replies[1])?);
    let is_met = match when {
        Condition::Absent => before.is_none(),
        Condition::Present => before.is_some(),
        _ => true,
    };
    if !is_met {
        let outcome = Outcome { refusal: Some(Refusal::NotExpected), ..of_value(before) };
        return Ok(Answered { key: key.to_vec(), outcome, has_value: true });
    }
    let applied = value.saturating_sub(before.unwrap_or_default());
    Ok(Answered::known(key, Outcome { value, applied, exists: after.is_some(), ..Outcome::EMPTY }))
}

fn deleted(key: &[u8], reply: &Reply) -> Result<Answered, Failure> {
    let before = value_of(reply)?.unwrap_or_default();
    Ok(Answered::known(key, Outcome { applied: before.saturating_neg(), ..Outcome::EMPTY }))
}

fn expired(key: &[u8], replies: &[Reply]) -> Result<Answered, Failure> {
    let outcome = Outcome { applied: integer(&replies[0])?, ..of_value(value_of(&replies[1])?) };
    Ok(Answered::known(key, outcome))
}

impl EngineClient for RedisCalls {
    fn send(&self, steps: &[CallStep], options: SubmitOptions) -> Result<Result<Receipt, EngineError>, Failure> {
        if options.consistency != Consistency::Exact {
            return Err(inexpressible(&options));
        }
        let mut answered = Vec::with_capacity(steps.len());
        let is_group = |step: &CallStep| matches!(step, CallStep::Group(_));
        for run in steps.chunk_by(|before, after| !is_group(before) && !is_group(after)) {
            answered.extend(match run {
                [CallStep::Group(steps)] => self.transaction(steps)?,
                steps => self.pipeline(steps)?,
            });
        }
        let outcomes = complete(self, answered)?;
        let as_of = outcomes.last().map_or(Millis(0), |outcome| outcome.at);
        Ok(Ok(Receipt { outcomes, as_of, token: Token::default() }))
    }

    fn readings(&self, keys: Vec<Key>, consistency: Consistency) -> Result<Vec<Reading>, Failure> {
        if consistency != Consistency::Exact {
            return Err(inexpressible(&consistency));
        }
        let reads = keys.iter().map(|key| command("TALLY.READ", &[&self.stored(key.as_bytes()), b"EXACT"]));
        let replies = self.run(&reads.collect::<Vec<_>>())?;
        let reading = |reply: &Reply| -> Result<Reading, Failure> {
            Ok(Reading {
                value: integer(field(reply, "value")?)?,
                exists: boolean(field(reply, "exists")?)?,
                exact: boolean(field(reply, "exact")?)?,
                as_of: time(field(reply, "as_of")?)?,
                staleness_ms: u64::try_from(integer(field(reply, "staleness_ms")?)?)?,
                created_at: optional_time(field(reply, "created_at")?)?,
                updated_at: optional_time(field(reply, "updated_at")?)?,
                expires_at: optional_time(field(reply, "expires_at")?)?,
                shards: 1,
                partial: false,
            })
        };
        replies.iter().map(reading).collect()
    }

    fn statistics(&self, _: Key) -> Result<Stats, Failure> {
        Err(inexpressible(&"statistics"))
    }

    fn page(&self, _: PageRequest) -> Result<Page, Failure> {
        Err(inexpressible(&"a listing in order"))
    }

    fn entries(&self, _: Key, _: u64, _: usize) -> Result<Vec<LedgerEntry>, Failure> {
        Err(inexpressible(&"a ledger"))
    }

    fn counters(&self) -> Result<u64, Failure> {
        Ok(u64::try_from(integer(&self.run(&[command("DBSIZE", &[])])?[0])?)?)
    }

    fn any_counter(&self, _: u64) -> Result<Option<Key>, Failure> {
        match &self.run(&[command("RANDOMKEY", &[])])?[0] {
            Reply::Bulk(key) => Ok(Some(Key::new(key)?)),
            reply if is_null(reply) => Ok(None),
            other => Err(format!("RANDOMKEY: {other:?}").into()),
        }
    }
}
