//! Random submissions of simulated callers.

use tally_core::counter::{Counter, CounterParts, CounterState};
use tally_core::event::{
    AddExpiry, Bounds, Change, Condition, Correction, Deadline, Details, Expiry, ExpiryCondition, Field, OnBound,
    VERSION_ABSENT,
};
use tally_core::import::{Existing, ImportPart, ImportedCounter};
use tally_core::key::Key;
use tally_core::ledger::{CHAIN_START, CorrectionKind, LedgerEntry};
use tally_core::sub_counters::{ShardReports, SubCounter};
use tally_core::time::Millis;

use crate::model::{Event, Model};
use crate::rng::Rng;

/// The counter that every submission increments: its value is the number of submissions in a state.
pub const SUBMISSIONS: &str = "submissions";

/// The counters, request ids and sizes to choose from.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The counters, without [`SUBMISSIONS`].
    pub keys: Vec<Key>,
    /// Number of distinct request ids.
    pub ids: u64,
    /// Most random events of a submission.
    pub events_max: u64,
}

impl Workload {
    /// Few, contended counters: in two namespaces and in none, inline and out of line.
    #[must_use]
    pub fn lively() -> Workload {
        let long = "likes:a counter with a name of more than twenty-one bytes";
        let names = ["a", "a\0", "ab", "b", "likes:1", "likes:10", "likes:2", long, "views:1", "views:\u{fc}", "z"];
        Workload { keys: names.iter().filter_map(|name| Key::new(name).ok()).collect(), ids: 12, events_max: 6 }
    }

    /// More counters than fit in memory.
    #[must_use]
    pub fn crowded() -> Workload {
        let keys = (0..12_000).filter_map(|number| Key::new(format!("c:{number}")).ok()).collect();
        Workload { keys, ids: 400, events_max: 150 }
    }

    /// A random counter.
    #[must_use]
    pub fn key(&self, rng: &mut Rng) -> Key {
        self.keys[rng.below(self.keys.len() as u64) as usize].clone()
    }

    /// A submission with events of every kind, by a caller that has read the state.
    #[must_use]
    pub fn submission(&self, rng: &mut Rng, now: Millis, read: &Model) -> Vec<Event> {
        let more = rng.below(self.events_max + 1);
        let mut events = with_submission_count((0..more).map(|_| self.event(rng, now)));
        if rng.one_in(4) {
            events.extend(self.optimistic_transaction(rng, now, read));
        }
        // Pipelines often repeat the same command.
        if rng.one_in(6) {
            let event = Event::add(&self.key(rng), amount(rng));
            events.extend(std::iter::repeat_n(event, 2 + rng.below(40) as usize));
        }
        events
    }

    /// Guards and the events that depend on them, as one group. Counters may change before it is applied, and some
    /// guards have a version that the counter never had.
    fn optimistic_transaction(&self, rng: &mut Rng, now: Millis, read: &Model) -> Vec<Event> {
        let mut events = Vec::new();
        for number in 0..=rng.below(2) {
            let key = self.key(rng);
            let version = match rng.below(8) {
                0 => VERSION_ABSENT,
                1 => rng.next_u64() as i64,
                _ => read.version(&key, now),
            };
            let change = Change::Guard { version, covers: 0 };
            events.push(Event { change, grouped: number > 0, ..Event::add(&key, 0) });
        }
        let covered = (0..=rng.below(4)).map(|_| Event { grouped: true, ..self.event(rng, now) });
        events.extend(covered);
        events
    }

    /// A read-only submission.
    #[must_use]
    pub fn reads(&self, rng: &mut Rng) -> Vec<Event> {
        (0..=rng.below(3)).map(|_| self.read(rng)).collect()
    }

    fn read(&self, rng: &mut Rng) -> Event {
        let field = [Field::Value, Field::Expiry, Field::Version][rng.below(3) as usize];
        Event { change: Change::Read(field), grouped: rng.one_in(4), ..Event::add(&self.key(rng), 0) }
    }

    fn event(&self, rng: &mut Rng, now: Millis) -> Event {
        if rng.one_in(10) {
            return self.read(rng);
        }
        if rng.one_in(24) {
            let key = self.key(rng);
            if let Some(change) = import(rng, &key, now) {
                return Event { change, grouped: rng.one_in(6), ..Event::add(&key, 0) };
            }
        }
        let id = rng.one_in(4).then(|| rng.below(self.ids).to_string().into_bytes());
        let change = change(rng, now);
        let detailed = matches!(change, Change::Add(_)) && rng.one_in(6);
        let details = detailed.then(|| {
            let bounds = rng.one_in(2).then(|| bounds(rng));
            let only_if_none = rng.one_in(2);
            let expiry =
                rng.one_in(2).then(|| AddExpiry { at: (!rng.one_in(5)).then(|| deadline(rng, now)), only_if_none });
            Details { bounds, expiry, ..Details::default() }
        });
        Event { key: self.key(rng), change, id, details, grouped: rng.one_in(6) }
    }
}

/// Puts an increment of [`SUBMISSIONS`] before these events.
pub fn with_submission_count(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let first = Key::new(SUBMISSIONS).ok().map(|key| Event::add(&key, 1));
    first.into_iter().chain(events).collect()
}

fn change(rng: &mut Rng, now: Millis) -> Change {
    let why = |rng: &mut Rng| {
        let reason = "because ".repeat(rng.below(5) as usize);
        Correction::new(&format!("actor {}", rng.below(3)), &reason).unwrap_or_default()
    };
    match rng.below(24) {
        0 | 6 => Change::Set { value: amount(rng), when: condition(rng), expiry: expiry(rng, now), why: why(rng) },
        1 => {
            let when = Condition::Equals(rng.below(4) as i64);
            Change::Set { value: amount(rng), when, expiry: Expiry::Keep, why: why(rng) }
        }
        2 => Change::Reset(why(rng)),
        3 => Change::Adjust { delta: amount(rng), why: why(rng) },
        4 | 5 => Change::Delete(why(rng)),
        7 | 8 => {
            let at = (!rng.one_in(5)).then(|| deadline(rng, now));
            Change::Expire { at, when: expiry_condition(rng) }
        }
        9 | 10 => reports(rng),
        _ => Change::Add(amount(rng)),
    }
}

/// Reports of some sub-counters. Many are repeated, late, or arrive after the sub-counter was closed.
fn reports(rng: &mut Rng) -> Change {
    let mut reports = Vec::new();
    for shard in 0..3 {
        if rng.one_in(2) {
            reports.push(SubCounter {
                shard,
                incarnation: rng.below(4),
                increments: rng.below(200),
                decrements: rng.below(20),
                is_closed: rng.one_in(10),
            });
        }
    }
    Change::Sum(ShardReports::new(reports).unwrap_or_default())
}

/// A counter of another engine, or a part of its ledger. It was last changed long ago, so it differs from every counter
/// that was changed here.
fn import(rng: &mut Rng, key: &Key, now: Millis) -> Option<Change> {
    let len = rng.below(5) as usize;
    let from = if rng.one_in(3) { rng.below(len as u64 + 1) as usize } else { 0 };
    let entries = foreign_ledger(key, len).split_off(from);
    let value = rng.below(3) as i64;
    let parts = CounterParts {
        increments: value as u128 + 1,
        decrements: 1,
        min: -1,
        max: value,
        created: Millis(1),
        updated: Millis(1 + rng.below(2)),
        rates: [0; 6],
    };
    let expires_at = rng.one_in(3).then(|| deadline(rng, now).resolve(now));
    let state = Counter::from_parts(&parts).map(|counter| CounterState { counter, expires_at });
    let part = match rng.below(5) {
        0 => ImportPart::Ledger,
        1 => ImportPart::Last(None),
        _ => ImportPart::Last(state),
    };
    let existing = if rng.one_in(2) { Existing::Replace } else { Existing::Refuse };
    ImportedCounter::new(key.as_ref(), part, existing, entries).ok().map(|imported| Change::Import(Box::new(imported)))
}

/// The first entries of a ledger that is always the same for a key.
fn foreign_ledger(key: &Key, len: usize) -> Vec<LedgerEntry> {
    let mut entries: Vec<LedgerEntry> = Vec::new();
    for number in 1..=len as u64 {
        let previous = entries.last().map_or(CHAIN_START, |last| last.hash);
        let (actor, reason) = ("elsewhere".into(), "imported".into());
        let (at, kind) = (Millis(number), CorrectionKind::Set);
        let (before, after) = (number as i64 - 1, number as i64);
        let mut entry = LedgerEntry { seq: number, at, kind, actor, reason, before, after, previous, hash: previous };
        entry.hash = entry.expected_hash(key.as_ref());
        entries.push(entry);
    }
    entries
}

fn condition(rng: &mut Rng) -> Condition {
    match rng.below(4) {
        0 => Condition::Absent,
        1 => Condition::Present,
        _ => Condition::Always,
    }
}

fn expiry(rng: &mut Rng, now: Millis) -> Expiry {
    match rng.below(3) {
        0 => Expiry::Keep,
        1 => Expiry::Never,
        _ => Expiry::At(deadline(rng, now)),
    }
}

fn expiry_condition(rng: &mut Rng) -> ExpiryCondition {
    match rng.below(8) {
        0 => ExpiryCondition::IfNone,
        1 => ExpiryCondition::IfSome,
        2 => ExpiryCondition::IfLater,
        3 => ExpiryCondition::IfEarlier,
        4 => ExpiryCondition::IfSomeAndEarlier,
        _ => ExpiryCondition::Always,
    }
}

/// A random deadline: mostly soon, sometimes at once or just past, sometimes far in the future.
fn deadline(rng: &mut Rng, now: Millis) -> Deadline {
    let millis = match rng.below(6) {
        0 => 0,
        1 => rng.below(40 * 3_600_000),
        _ => rng.below(2_000),
    };
    match rng.below(2) {
        0 => Deadline::After(millis),
        _ => Deadline::At(Millis(now.0 + millis - rng.below(3))),
    }
}

/// A random amount: mostly small, sometimes so large that a few overflow.
fn amount(rng: &mut Rng) -> i64 {
    let amount = match rng.below(24) {
        0 | 1 => rng.below(1 << 40) as i64,
        2 => i64::MAX - rng.below(3) as i64,
        3 => i64::MAX / 2,
        _ => rng.below(4) as i64,
    };
    if rng.one_in(3) { -amount } else { amount }
}

fn bounds(rng: &mut Rng) -> Bounds {
    let ways = [OnBound::Refuse, OnBound::Saturate, OnBound::RefuseOutside, OnBound::Clamp];
    let on_bound = ways[rng.below(ways.len() as u64) as usize];
    Bounds { floor: rng.one_in(2).then_some(0), ceiling: rng.one_in(2).then_some(10), on_bound }
}
