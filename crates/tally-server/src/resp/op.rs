//! Commands on counters: what their arguments say, and the events that come of it.
//!
//! Reading arguments and adding events are apart, because a transaction adds the events of many commands at once.

use tally_core::batch::Events;
use tally_core::event::{
    AddExpiry, Bounds, Change, Condition, Deadline, Details, Expiry, ExpiryCondition, Field, OnBound, RequestId,
};
use tally_core::key::KeyRef;
use tally_core::time::Millis;

use super::commands::Command;
use super::errors::{NOT_AN_INTEGER, SYNTAX, invalid_expiry, shown};
use super::plan::{Clock, Plan};
use super::wire::{Args, integer};
use crate::admission;
use crate::policy::Consistency;
use crate::service::Service;

/// What a command does, its arguments read and admitted.
pub enum Op<'a> {
    /// Adds; what combines.
    Add { key: KeyRef<'a>, delta: i64 },
    /// Adds with more than a number.
    AddWith { key: KeyRef<'a>, delta: i64, id: Option<RequestId>, details: Details, plan: Plan },
    /// Looks at one counter.
    Read { key: KeyRef<'a>, look: Field, plan: Plan },
    /// Looks at several.
    ReadMany { keys: Args<'a>, plan: Plan },
    /// Removes several.
    Remove { keys: Args<'a>, plan: Plan },
    /// Removes one and tells what it was.
    Take { key: KeyRef<'a> },
    /// Sets, and perhaps tells what was there before.
    Set { key: KeyRef<'a>, value: i64, when: Condition, expiry: Expiry, before: bool },
    /// Sets or removes an expiry.
    Expire { key: KeyRef<'a>, at: Option<Deadline>, when: ExpiryCondition },
}

/// Who asks and when.
#[derive(Clone, Copy)]
pub struct Asker {
    /// Where the command came from.
    pub peer: std::net::IpAddr,
    /// The time on the server's clock.
    pub now: Millis,
}

/// Why a command is refused: the text of the error.
pub type Refused = std::borrow::Cow<'static, str>;

impl<'a> Op<'a> {
    /// What the arguments of a command on counters say; `None` for other commands. Their number is known to be right.
    #[inline]
    pub fn read(command: Command, args: Args<'a>, asker: Asker) -> Option<Result<Op<'a>, Refused>> {
        if let Some(delta) = delta(command, args) {
            return Some(delta.and_then(|delta| Ok(Op::Add { delta, key: key(args)? })));
        }
        Some(match command {
            Command::Get => look(args, Field::Value, Plan::Text),
            Command::Type => look(args, Field::Value, Plan::Kind),
            Command::Ttl => look(args, Field::Expiry, Plan::Expiry(Clock::SecondsLeft)),
            Command::PTtl => look(args, Field::Expiry, Plan::Expiry(Clock::MillisLeft)),
            Command::ExpireTime => look(args, Field::Expiry, Plan::Expiry(Clock::Second)),
            Command::PExpireTime => look(args, Field::Expiry, Plan::Expiry(Clock::Milli)),
            Command::MGet => keys(args).map(|(keys, plan)| Op::ReadMany { keys, plan: Plan::Texts(plan) }),
            Command::Exists => keys(args).map(|(keys, plan)| Op::ReadMany { keys, plan: Plan::Existing(plan) }),
            Command::Del | Command::Unlink => {
                keys(args).map(|(keys, plan)| Op::Remove { keys, plan: Plan::Removed(plan) })
            }
            Command::GetDel => key(args).map(|key| Op::Take { key }),
            Command::GetSet => value(args, 2).and_then(|value| {
                Ok(Op::Set { key: key(args)?, value, when: Condition::Always, expiry: Expiry::Never, before: true })
            }),
            Command::Set => set(args, asker),
            Command::IncrEx => bounded(args, asker),
            Command::Expire => expire(args, Unit::Seconds, Since::Batch(asker.now), "expire"),
            Command::PExpire => expire(args, Unit::Millis, Since::Batch(asker.now), "pexpire"),
            Command::ExpireAt => expire(args, Unit::Seconds, Since::Epoch, "expireat"),
            Command::PExpireAt => expire(args, Unit::Millis, Since::Epoch, "pexpireat"),
            Command::Persist => key(args).map(|key| Op::Expire { key, at: None, when: ExpiryCondition::Always }),
            Command::TallyAdd => tally_add(args),
            _ => return None,
        })
    }

    /// The consistency of its answer: the strongest that any of its keys asks for.
    #[inline]
    pub fn consistency(&self, service: &Service) -> Consistency {
        match self {
            Op::Add { key, .. }
            | Op::AddWith { key, .. }
            | Op::Read { key, .. }
            | Op::Take { key }
            | Op::Set { key, .. }
            | Op::Expire { key, .. } => service.consistency(*key),
            Op::ReadMany { keys, .. } | Op::Remove { keys, .. } => {
                let all = keys.iter().skip(1).filter_map(|key| KeyRef::new(key).ok());
                all.map(|key| service.consistency(key)).max().unwrap_or_default()
            }
        }
    }

    /// Whether it changes nothing.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Read { .. } | Op::ReadMany { .. })
    }

    /// Adds its events, and says how its reply follows from them.
    #[inline]
    pub fn push(self, events: &mut Events, asker: Asker) -> Result<Plan, Refused> {
        match self {
            Op::Add { key, delta } => {
                events.add(key, delta);
                Ok(Plan::Value)
            }
            Op::AddWith { key, delta, id, details, plan } => {
                events.push(key, Change::Add(delta), id, Some(details));
                Ok(plan)
            }
            Op::Read { key, look, plan } => {
                events.push(key, Change::Read(look), None, None);
                Ok(plan)
            }
            Op::ReadMany { keys, plan } => {
                for key in keys.iter().skip(1) {
                    events.push(admit(key)?, Change::Read(Field::Value), None, None);
                }
                Ok(plan)
            }
            Op::Remove { keys, plan } => {
                for key in keys.iter().skip(1) {
                    remove(events, admit(key)?, asker, "DEL")?;
                }
                Ok(plan)
            }
            Op::Take { key } => {
                remove(events, key, asker, "GETDEL")?;
                Ok(Plan::Taken)
            }
            Op::Set { key, value, when, expiry, before } => {
                if before {
                    events.push(key, Change::Read(Field::Value), None, None);
                }
                let why = correction(asker, "SET")?;
                events.push(key, Change::Set { value, when, expiry, why }, None, None);
                Ok(if before { Plan::Before } else { Plan::Set })
            }
            Op::Expire { key, at, when } => {
                events.push(key, Change::Expire { at, when }, None, None);
                Ok(Plan::Done)
            }
        }
    }
}

/// Tells whether the counter is there, then removes it.
fn remove(events: &mut Events, key: KeyRef<'_>, asker: Asker, command: &str) -> Result<(), Refused> {
    events.push(key, Change::Read(Field::Value), None, None);
    events.push(key, Change::Delete(correction(asker, command)?), None, None);
    Ok(())
}

/// Who corrects a counter. The protocol has no place for a reason, so the command is the reason.
fn correction(asker: Asker, command: &str) -> Result<tally_core::event::Correction, Refused> {
    admission::correction(asker.peer, command).map_err(|denied| format!("ERR {denied}").into())
}

#[inline]
fn admit(key: &[u8]) -> Result<KeyRef<'_>, Refused> {
    KeyRef::new(key).map_err(|error| format!("ERR {error}").into())
}

/// The counter that a command names first.
#[inline]
pub fn key(args: Args<'_>) -> Result<KeyRef<'_>, Refused> {
    admit(args.get(1).unwrap_or_default())
}

/// All arguments as keys, checked before any of them changes anything.
fn keys(args: Args<'_>) -> Result<(Args<'_>, u32), Refused> {
    for key in args.iter().skip(1) {
        admit(key)?;
    }
    Ok((args, u32::try_from(args.len() - 1).unwrap_or(u32::MAX)))
}

fn number(args: Args<'_>, at: usize) -> Result<i64, Refused> {
    integer(args.get(at).unwrap_or_default()).ok_or(NOT_AN_INTEGER.into())
}

/// The value of a counter, which is always a 64-bit integer.
fn value(args: Args<'_>, at: usize) -> Result<i64, Refused> {
    number(args, at)
}

fn negated(args: Args<'_>) -> Result<i64, Refused> {
    number(args, 2)?.checked_neg().ok_or("ERR decrement would overflow".into())
}

/// What a plain add adds; `None` for other commands.
#[inline]
pub fn delta(command: Command, args: Args<'_>) -> Option<Result<i64, Refused>> {
    Some(match command {
        Command::Incr => Ok(1),
        Command::Decr => Ok(-1),
        Command::IncrBy => number(args, 2),
        Command::DecrBy => negated(args),
        _ => return None,
    })
}

fn look(args: Args<'_>, look: Field, plan: Plan) -> Result<Op<'_>, Refused> {
    Ok(Op::Read { key: key(args)?, look, plan })
}

/// A unit of time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Millis,
}

impl Unit {
    fn millis(self, count: i64) -> Option<i64> {
        match self {
            Unit::Seconds => count.checked_mul(1000),
            Unit::Millis => Some(count),
        }
    }
}

/// What a time counts from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Since {
    /// The batch that applies the command. The time is the server's, about which a duration must not overflow.
    Batch(Millis),
    /// The Unix epoch.
    Epoch,
}

/// `count` units from then on. What lies before that means at once.
fn deadline(unit: Unit, count: i64, since: Since, command: &str) -> Result<Deadline, Refused> {
    let millis = unit.millis(count).ok_or_else(|| invalid_expiry(command))?;
    let positive = u64::try_from(millis).unwrap_or(0);
    match since {
        Since::Epoch => Ok(Deadline::At(Millis(positive))),
        Since::Batch(now) => {
            let now = i64::try_from(now.0).unwrap_or(i64::MAX);
            millis.checked_add(now).ok_or_else(|| invalid_expiry(command))?;
            Ok(Deadline::After(positive))
        }
    }
}

/// An option `EX`, `PX`, `EXAT` or `PXAT` with its count, which must be positive.
#[derive(Clone, Copy)]
struct ExpiryOption<'a> {
    unit: Unit,
    is_relative: bool,
    count: &'a [u8],
}

impl<'a> ExpiryOption<'a> {
    /// The unit that a word names, and whether it counts from now.
    fn unit(word: &[u8]) -> Option<(Unit, bool)> {
        let options: [(&[u8], Unit, bool); 4] = [
            (b"EX", Unit::Seconds, true),
            (b"PX", Unit::Millis, true),
            (b"EXAT", Unit::Seconds, false),
            (b"PXAT", Unit::Millis, false),
        ];
        let found = options.into_iter().find(|(name, ..)| word.eq_ignore_ascii_case(name))?;
        Some((found.1, found.2))
    }

    fn deadline(&self, now: Millis, command: &str) -> Result<Deadline, Refused> {
        let count = integer(self.count).ok_or(NOT_AN_INTEGER)?;
        if count <= 0 {
            return Err(invalid_expiry(command).into());
        }
        deadline(self.unit, count, if self.is_relative { Since::Batch(now) } else { Since::Epoch }, command)
    }
}

fn set(args: Args<'_>, asker: Asker) -> Result<Op<'_>, Refused> {
    let mut when = Condition::Always;
    let mut expiry = None;
    let (mut before, mut keep) = (false, false);
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"NX") && when != Condition::Present {
            when = Condition::Absent;
        } else if is(b"XX") && when != Condition::Absent {
            when = Condition::Present;
        } else if is(b"GET") {
            before = true;
        } else if is(b"KEEPTTL") && expiry.is_none() {
            keep = true;
        } else if let Some((unit, is_relative)) = ExpiryOption::unit(word)
            && !keep
            && expiry.is_none_or(|known: ExpiryOption<'_>| (known.unit, known.is_relative) == (unit, is_relative))
        {
            let count = options.next().ok_or(SYNTAX)?;
            expiry = Some(ExpiryOption { unit, is_relative, count });
        } else {
            return Err(SYNTAX.into());
        }
    }
    let expiry = match expiry {
        Some(option) => Expiry::At(option.deadline(asker.now, "set")?),
        None if keep => Expiry::Keep,
        None => Expiry::Never,
    };
    Ok(Op::Set { key: key(args)?, value: value(args, 2)?, when, expiry, before })
}

fn expire<'a>(args: Args<'a>, unit: Unit, since: Since, command: &str) -> Result<Op<'a>, Refused> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in args.iter().skip(3) {
        let options: [(&[u8], &mut bool); 4] = [(b"NX", &mut nx), (b"XX", &mut xx), (b"GT", &mut gt), (b"LT", &mut lt)];
        match options.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)) {
            Some((_, flag)) => *flag = true,
            None => return Err(format!("ERR Unsupported option {}", shown(word)).into()),
        }
    }
    let when = match (nx, xx, gt, lt) {
        (true, false, false, false) => ExpiryCondition::IfNone,
        (true, ..) => return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into()),
        (_, _, true, true) => return Err("ERR GT and LT options at the same time are not compatible".into()),
        (_, true, false, true) => ExpiryCondition::IfSomeAndEarlier,
        (_, _, true, _) => ExpiryCondition::IfLater,
        (_, _, _, true) => ExpiryCondition::IfEarlier,
        (_, true, ..) => ExpiryCondition::IfSome,
        _ => ExpiryCondition::Always,
    };
    let at = deadline(unit, number(args, 2)?, since, command)?;
    Ok(Op::Expire { key: key(args)?, at: Some(at), when })
}

/// `INCREX key [BYINT n] [LBOUND l] [UBOUND u] [SATURATE] [EX n | PX n | EXAT n | PXAT n | PERSIST] [ENX]`
fn bounded(args: Args<'_>, asker: Asker) -> Result<Op<'_>, Refused> {
    let (mut by, mut floor, mut ceiling, mut expiry) = (None, None, None, None);
    let (mut saturate, mut persist, mut only_if_none) = (false, false, false);
    let mut options = args.iter().skip(2);
    while let Some(word) = options.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"BYFLOAT") {
            return Err("ERR BYFLOAT is not supported: counters are 64-bit integers".into());
        } else if is(b"BYINT") {
            once(&mut by, options.next())?;
        } else if is(b"LBOUND") {
            once(&mut floor, options.next())?;
        } else if is(b"UBOUND") {
            once(&mut ceiling, options.next())?;
        } else if is(b"SATURATE") && !saturate {
            saturate = true;
        } else if is(b"PERSIST") && !persist && expiry.is_none() {
            persist = true;
        } else if is(b"ENX") && !only_if_none {
            only_if_none = true;
        } else if let Some((unit, is_relative)) = ExpiryOption::unit(word)
            && !persist
            && expiry.is_none()
        {
            let count = options.next().ok_or(SYNTAX)?;
            expiry = Some(ExpiryOption { unit, is_relative, count });
        } else {
            return Err(SYNTAX.into());
        }
    }
    if persist && only_if_none {
        return Err(SYNTAX.into());
    }
    if only_if_none && expiry.is_none() {
        return Err("ERR ENX flag requires an expiration".into());
    }
    let parse = |text: Option<&[u8]>, name: &str| match text {
        None => Ok(None),
        Some(text) => match integer(text) {
            Some(number) => Ok(Some(number)),
            None => Err(Refused::from(format!("ERR {name} is not an integer or out of range"))),
        },
    };
    let delta = parse(by, "Increment")?.unwrap_or(1);
    let (floor, ceiling) = (parse(floor, "LBOUND")?, parse(ceiling, "UBOUND")?);
    if floor > ceiling && ceiling.is_some() {
        return Err("ERR LBOUND can't be greater than UBOUND".into());
    }
    let expiry = match expiry {
        Some(option) => Some(AddExpiry { at: Some(option.deadline(asker.now, "increx")?), only_if_none }),
        None if persist => Some(AddExpiry { at: None, only_if_none: false }),
        None => None,
    };
    let on_bound = if saturate { OnBound::Clamp } else { OnBound::RefuseOutside };
    let bounds = Some(Bounds { floor, ceiling, on_bound });
    let details = Details { bounds, expiry, ..Details::default() };
    Ok(Op::AddWith { key: key(args)?, delta, id: None, details, plan: Plan::Bounded })
}

/// Takes the value of an option that may be given once.
fn once<'a>(slot: &mut Option<&'a [u8]>, value: Option<&'a [u8]>) -> Result<(), Refused> {
    match (slot.is_none(), value) {
        (true, Some(_)) => {
            *slot = value;
            Ok(())
        }
        _ => Err(SYNTAX.into()),
    }
}

/// `TALLY.ADD key delta [ID id]`
fn tally_add(args: Args<'_>) -> Result<Op<'_>, Refused> {
    let (key, delta) = (key(args)?, number(args, 2)?);
    let mut id = None;
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"ID") && id.is_none() {
            let text = options.next().ok_or(SYNTAX)?;
            id = Some(admission::request_id(key, text).map_err(|denied| format!("ERR {denied}"))?);
        } else if [&b"MEMBER"[..], b"DIM", b"AT"].into_iter().any(is) {
            let name = String::from_utf8_lossy(word).to_uppercase();
            return Err(format!("ERR {name} is not supported yet; nothing was changed").into());
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(Op::AddWith { key, delta, id, details: Details::default(), plan: Plan::Written })
}
