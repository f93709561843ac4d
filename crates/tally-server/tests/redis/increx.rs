//! Random `INCREX` commands. Redis does not have `INCREX`, so it is emulated there with other commands.

use crate::draw::{Draw, Words};
use crate::harness::wire::{Reply, Resp};

/// One `INCREX` with valid options.
pub struct IncrEx {
    key: Vec<u8>,
    by: Option<i64>,
    floor: Option<i64>,
    ceiling: Option<i64>,
    saturate: bool,
    persist: bool,
    only_if_none: bool,
    expiry: Option<[Vec<u8>; 2]>,
}

impl IncrEx {
    /// A random one.
    pub fn draw(draw: &mut Draw) -> IncrEx {
        let key = draw.key();
        let maybe = |draw: &mut Draw| if draw.one_in(2) { Some(draw.integer()) } else { None };
        let (by, floor, ceiling) = (maybe(draw), maybe(draw), maybe(draw));
        let expiry = draw.one_in(4).then(|| draw.expiry_option(&key));
        // Invalid and out-of-range counts are covered by `SET`.
        let is_plain = |count: &Vec<u8>| {
            let number = std::str::from_utf8(count).ok().and_then(|text| text.parse::<i64>().ok());
            number.is_some_and(|n| 0 < n && n < i64::MAX / 10_000 && n.to_string().as_bytes() == count)
        };
        let expiry = expiry.filter(|[_, count]| is_plain(count));
        let persist = expiry.is_none() && draw.one_in(8);
        let only_if_none = expiry.is_some() && draw.one_in(2);
        IncrEx { key, by, floor, ceiling, saturate: draw.one_in(2), persist, only_if_none, expiry }
    }

    /// Its arguments, with the options in random order.
    pub fn words(&self, draw: &mut Draw) -> Words {
        let number = |name: &str, number: Option<i64>| number.map(|n| vec![name.into(), n.to_string().into_bytes()]);
        let flag = |name: &str, is_on: bool| is_on.then(|| vec![name.into()]);
        let mut options: Vec<Words> = [
            number("BYINT", self.by),
            number("lbound", self.floor),
            number("UBOUND", self.ceiling),
            flag("Saturate", self.saturate),
            flag("PERSIST", self.persist),
            flag("enx", self.only_if_none),
            self.expiry.as_ref().map(|words| words.to_vec()),
        ]
        .into_iter()
        .flatten()
        .collect();
        draw.shuffle(&mut options);
        [vec![b"increx".to_vec(), self.key.clone()], options.concat()].concat()
    }

    /// Emulates it on a Redis and returns the expected reply.
    pub fn act_on(&self, redis: &mut Resp) -> Reply {
        let (floor, ceiling) = (self.floor.unwrap_or(i64::MIN), self.ceiling.unwrap_or(i64::MAX));
        if floor > ceiling {
            return Reply::Error("ERR LBOUND can't be greater than UBOUND".into());
        }
        let key = self.key.as_slice();
        let before = match redis.call(&[b"GET", key]) {
            Reply::Line(_) => 0,
            value => value.number(),
        };
        let wanted = i128::from(before) + i128::from(self.by.unwrap_or(1));
        let is_within = i128::from(floor) <= wanted && wanted <= i128::from(ceiling);
        if !is_within && !self.saturate {
            return pair(before, 0);
        }
        let after = wanted.clamp(floor.into(), ceiling.into()) as i64;
        let Some(applied) = after.checked_sub(before) else {
            return Reply::Error("ERR applied increment would overflow".into());
        };
        redis.call(&[b"SET", key, after.to_string().as_bytes(), b"KEEPTTL"]);
        if self.persist {
            redis.call(&[b"PERSIST", key]);
        }
        if let Some([option, count]) = &self.expiry {
            let command = match option.to_ascii_uppercase().as_slice() {
                b"EX" => "EXPIRE",
                b"PX" => "PEXPIRE",
                b"EXAT" => "EXPIREAT",
                _ => "PEXPIREAT",
            };
            let when: &[&[u8]] = if self.only_if_none { &[b"NX"] } else { &[] };
            redis.call(&[&[command.as_bytes(), key, count], when].concat());
        }
        pair(after, applied)
    }
}

fn pair(value: i64, applied: i64) -> Reply {
    Reply::Many(b'*', vec![Reply::Integer(value), Reply::Integer(applied)])
}
