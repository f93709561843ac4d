//! The scripts that replace a value only by a newer one, and how commands call them.
//!
//! Both compare bytes one by one. Numbers of Lua are doubles, which are not exact above 2⁵³, and `<` compares strings by
//! the locale of the server (`strcoll`). A value of another type counts as absent, and `SET` replaces it.

use redis::Cmd;

/// Arguments: the total, and its time to live in milliseconds or nothing. Answers one of the `TOTAL_` constants.
const PUBLISH_TOTAL: &str = "\
local old = redis.pcall('GETRANGE', KEYS[1], 1, 8)
if type(old) ~= 'string' or #old < 8 then
  if ARGV[2] == '' then return 2 end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
for i = 1, 8 do
  local a, b = string.byte(old, i), string.byte(ARGV[1], i + 1)
  if a < b then
    redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
    return 1
  end
  if a > b then return 0 end
end
return 1";

/// The one there is newer.
pub const TOTAL_OUTDATED: i64 = 0;
/// It is there now, or was already.
pub const TOTAL_PUBLISHED: i64 = 1;
/// There is none, and it was not created.
pub const TOTAL_GONE: i64 = 2;

/// Argument: the heartbeat. Answers 1, or 0 if the one there is newer.
const PUBLISH_HEARTBEAT: &str = "\
local old = redis.pcall('GETRANGE', KEYS[1], 1, 24)
if type(old) == 'string' and #old == 24 then
  for i = 1, 24 do
    local a, b = string.byte(old, i), string.byte(ARGV[1], i + 1)
    if a < b then break end
    if a > b then return 0 end
  end
end
redis.call('SET', KEYS[1], ARGV[1])
return 1";

/// What is done with one key.
pub struct KeyCommand {
    pub key: Vec<u8>,
    pub verb: KeyVerb,
}

pub enum KeyVerb {
    Get,
    PublishTotal {
        value: Vec<u8>,
        /// `None` leaves a total that is not there absent.
        ttl_ms: Option<u64>,
    },
    PublishHeartbeat {
        value: Vec<u8>,
    },
}

/// How a script is named in a command.
#[derive(Clone, Copy)]
pub enum ScriptForm<'a> {
    /// By its text, which a node then remembers.
    Text,
    /// By its hash, for a node that remembers the text.
    Hash(&'a ScriptHashes),
}

/// The hashes of the scripts.
pub struct ScriptHashes {
    total: String,
    heartbeat: String,
}

impl ScriptHashes {
    /// Asks for the hash of each script; `load` runs `SCRIPT LOAD`.
    pub async fn load<E>(load: impl AsyncFn(Cmd) -> Result<String, E>) -> Result<ScriptHashes, E> {
        let command = |text: &str| {
            let mut command = redis::cmd("SCRIPT");
            command.arg("LOAD").arg(text);
            command
        };
        Ok(ScriptHashes {
            total: load(command(PUBLISH_TOTAL)).await?,
            heartbeat: load(command(PUBLISH_HEARTBEAT)).await?,
        })
    }
}

impl KeyCommand {
    /// The command.
    pub fn command(&self, form: ScriptForm<'_>) -> Cmd {
        let call = |text: &str, hash: fn(&ScriptHashes) -> &str| {
            let mut command = match form {
                ScriptForm::Text => redis::cmd("EVAL"),
                ScriptForm::Hash(_) => redis::cmd("EVALSHA"),
            };
            match form {
                ScriptForm::Text => command.arg(text),
                ScriptForm::Hash(hashes) => command.arg(hash(hashes)),
            };
            command.arg(1).arg(&self.key);
            command
        };
        match &self.verb {
            KeyVerb::Get => {
                let mut command = redis::cmd("GET");
                command.arg(&self.key);
                command
            }
            KeyVerb::PublishTotal { value, ttl_ms } => {
                let mut command = call(PUBLISH_TOTAL, |hashes| &hashes.total);
                command.arg(value);
                match ttl_ms {
                    Some(ttl_ms) => command.arg(*ttl_ms),
                    None => command.arg(""),
                };
                command
            }
            KeyVerb::PublishHeartbeat { value } => {
                let mut command = call(PUBLISH_HEARTBEAT, |hashes| &hashes.heartbeat);
                command.arg(value);
                command
            }
        }
    }
}
