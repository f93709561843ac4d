//! The Lua scripts that run in Redis, and how commands call them.
//!
//! The two that publish replace a value only with a newer one, and compare bytes one by one: Lua's numbers are doubles,
//! which are not exact above 2⁵³, and `<` compares strings by the locale of the server (`strcoll`). A value of another
//! type counts as absent, and `SET` replaces it.

use redis::Cmd;

/// Arguments: the total, and its time to live in milliseconds or nothing. A total at the same position is replaced if
/// it was published under another master, or if this one has a time to live. Returns one of the `TOTAL_` constants.
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
if ARGV[2] ~= '' or redis.call('GETRANGE', KEYS[1], 9, 16) ~= string.sub(ARGV[1], 10, 17) then
  redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
end
return 1";

/// The total in Redis is newer.
pub const TOTAL_OUTDATED: i64 = 0;
/// The total is in Redis now, or was already.
pub const TOTAL_PUBLISHED: i64 = 1;
/// Redis has none, and it was not created.
pub const TOTAL_GONE: i64 = 2;

/// Arguments: the expected value, and the new one. Returns 1, or 0 if the value is a different one.
const REPLACE: &str = "\
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1";

/// Argument: the heartbeat. Returns 1, or 0 if the one in Redis is newer.
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

/// Adds to a sub-counter, and creates it with the time of the server as its incarnation. Arguments: `p` for additions
/// or `n` for subtractions, and the amount.
const ADD: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 then
  local now = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'i', now[1] .. string.format('%06d', now[2]))
end
redis.call('HINCRBY', KEYS[1], 'w', 1)
redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
return 1";

/// Removes a sub-counter if it has exactly these values. Arguments: the fields `i`, `p` and `n`; empty ones are not
/// compared. Returns 1 if it is gone.
const CLOSE: &str = "\
local now = redis.call('HMGET', KEYS[1], 'i', 'p', 'n')
if not now[1] then return 1 end
for i = 1, 3 do
  if ARGV[i] ~= '' and (now[i] or '0') ~= ARGV[i] then return 0 end
end
redis.call('DEL', KEYS[1])
return 1";

/// Records the load of a sub-counter. Argument: writes per second.
const RATE: &str = "\
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'r', ARGV[1]) end
return 1";

/// Adds a counter to the list of active ones. Arguments: the counter, its number of shards if it is new, the minimum of
/// its peak, and the maximum length of the list. Returns the number of shards, or 0 if the list is full. An entry is
/// `stamp:shards:peak`. The stamp is the time in microseconds, or the previous stamp plus one if that is greater, so
/// every registration changes the entry.
const REGISTER: &str = "\
local old = redis.call('HGET', KEYS[1], ARGV[1])
local now = redis.call('TIME')
local stamp, shards, peak = now[1] * 1000000 + now[2], tonumber(ARGV[2]), tonumber(ARGV[3])
if old then
  local t, s, p = string.match(old, '^(%d+):(%d+):(%d+)$')
  stamp = math.max(stamp, (tonumber(t) or 0) + 1)
  shards, peak = tonumber(s) or shards, math.max(peak, tonumber(p) or 1)
elseif redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return 0
end
peak = math.max(peak, shards)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', stamp) .. ':' .. shards .. ':' .. peak)
return shards";

/// Changes the number of shards of an active counter. Arguments: the counter, and the number.
const RESHARD: &str = "\
local s, p = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+):%d+:(%d+)$')
if not s then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], s .. ':' .. ARGV[2] .. ':' .. math.max(tonumber(p), tonumber(ARGV[2])))
return 1";

/// Removes a counter from the list of active ones, if its entry is still this one. Arguments: the counter, and the
/// entry.
const RETIRE: &str = "\
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1";

/// The scripts of sub-counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardScript {
    Add,
    Close,
    Rate,
    Register,
    Reshard,
    Retire,
}

impl ShardScript {
    const ALL: [ShardScript; 6] = [
        ShardScript::Add,
        ShardScript::Close,
        ShardScript::Rate,
        ShardScript::Register,
        ShardScript::Reshard,
        ShardScript::Retire,
    ];

    fn text(self) -> &'static str {
        match self {
            ShardScript::Add => ADD,
            ShardScript::Close => CLOSE,
            ShardScript::Rate => RATE,
            ShardScript::Register => REGISTER,
            ShardScript::Reshard => RESHARD,
            ShardScript::Retire => RETIRE,
        }
    }
}

/// A command on one key.
pub struct KeyCommand {
    pub key: Vec<u8>,
    pub verb: KeyVerb,
}

pub enum KeyVerb {
    Get,
    PublishTotal {
        value: Vec<u8>,
        /// With `None`, a total that does not exist is not created.
        ttl_ms: Option<u64>,
    },
    PublishHeartbeat {
        value: Vec<u8>,
    },
    /// Reads one field of a hash.
    Field(Vec<u8>),
    /// Reads these fields of a hash.
    Fields(&'static [&'static str]),
    /// Reads a part of a hash; the first cursor is 0.
    Scan {
        cursor: u64,
        count: usize,
    },
    Shard {
        script: ShardScript,
        arguments: Vec<Vec<u8>>,
    },
    Replace {
        seen: Vec<u8>,
        value: Vec<u8>,
    },
}

/// How a script is named in a command.
#[derive(Clone, Copy)]
pub enum ScriptForm<'a> {
    /// By its text, which a node then caches.
    Text,
    /// By its hash, for a node that has cached the text.
    Hash(&'a ScriptHashes),
}

/// The hashes of the scripts.
pub struct ScriptHashes {
    total: String,
    heartbeat: String,
    shard: Vec<(ShardScript, String)>,
    replace: String,
}

impl ScriptHashes {
    /// Asks for the hash of each script; `load` runs `SCRIPT LOAD`.
    pub async fn load<E>(load: impl AsyncFn(Cmd) -> Result<String, E>) -> Result<ScriptHashes, E> {
        let command = |text: &str| {
            let mut command = redis::cmd("SCRIPT");
            command.arg("LOAD").arg(text);
            command
        };
        let mut shard = Vec::new();
        for script in ShardScript::ALL {
            shard.push((script, load(command(script.text())).await?));
        }
        Ok(ScriptHashes {
            shard,
            total: load(command(PUBLISH_TOTAL)).await?,
            heartbeat: load(command(PUBLISH_HEARTBEAT)).await?,
            replace: load(command(REPLACE)).await?,
        })
    }
}

impl ScriptHashes {
    fn shard(&self, script: ShardScript) -> &str {
        self.shard.iter().find(|(known, _)| *known == script).map_or("", |(_, hash)| hash)
    }
}

impl KeyCommand {
    /// The command.
    pub fn command(&self, form: ScriptForm<'_>) -> Cmd {
        let call = |text: &str, hash: &dyn Fn(&ScriptHashes) -> String| {
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
                let mut command = call(PUBLISH_TOTAL, &|hashes| hashes.total.clone());
                command.arg(value);
                match ttl_ms {
                    Some(ttl_ms) => command.arg(*ttl_ms),
                    None => command.arg(""),
                };
                command
            }
            KeyVerb::Field(field) => {
                let mut command = redis::cmd("HGET");
                command.arg(&self.key).arg(field);
                command
            }
            KeyVerb::Fields(fields) => {
                let mut command = redis::cmd("HMGET");
                command.arg(&self.key).arg(*fields);
                command
            }
            KeyVerb::Scan { cursor, count } => {
                let mut command = redis::cmd("HSCAN");
                command.arg(&self.key).arg(*cursor).arg("COUNT").arg(*count);
                command
            }
            KeyVerb::Shard { script, arguments } => {
                let mut command = call(script.text(), &|hashes| hashes.shard(*script).to_owned());
                command.arg(arguments);
                command
            }
            KeyVerb::Replace { seen, value } => {
                let mut command = call(REPLACE, &|hashes| hashes.replace.clone());
                command.arg(seen).arg(value);
                command
            }
            KeyVerb::PublishHeartbeat { value } => {
                let mut command = call(PUBLISH_HEARTBEAT, &|hashes| hashes.heartbeat.clone());
                command.arg(value);
                command
            }
        }
    }
}
