//! What the partition must come to, written a second time and as plainly as possible.
//!
//! No batches, no combining, no memory budget, no digests: maps, lists and one event after the other. Where the two
//! disagree, one of them is wrong.

use std::collections::BTreeMap;

use tally_core::counter::CounterState;
use tally_core::event::{
    Bounds, Change, Condition, Correction, Details, Expiry, ExpiryCondition, Field, OnBound, RequestId,
};
use tally_core::key::Key;
use tally_core::ledger::{CHAIN_START, CorrectionKind, LedgerEntry};
use tally_core::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS};
use tally_core::outcome::{Outcome, Refusal};
use tally_core::rates::WINDOWS_MS;
use tally_core::time::Millis;

/// One event, with everything spelt out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The counter.
    pub key: Key,
    /// What happens to it.
    pub change: Change,
    /// Names the request.
    pub id: Option<Vec<u8>>,
    /// What else it carries.
    pub details: Option<Details>,
    /// Whether it is in one group with the event before it.
    pub grouped: bool,
}

impl Event {
    /// A plain increment.
    #[must_use]
    pub fn add(key: &Key, delta: i64) -> Event {
        Event { key: key.clone(), change: Change::Add(delta), id: None, details: None, grouped: false }
    }

    /// The id as the engine takes it; one that is too long is none.
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        RequestId::new(self.key.as_ref(), self.id.as_deref()?).ok()
    }

    /// Adds the event to a call.
    pub fn push_to(&self, call: &mut tally_core::batch::Events) {
        call.push(self.key.as_ref(), self.change.clone(), self.request_id(), self.details.clone());
    }

    /// Whether it only looks.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self.change, Change::Read(_))
    }

    /// What the request asks for; who asks and in what company is not part of it.
    fn payload(&self) -> Event {
        let mut payload = Event { grouped: false, ..self.clone() };
        match &mut payload.change {
            Change::Set { why, .. } | Change::Adjust { why, .. } | Change::Reset(why) | Change::Delete(why) => {
                *why = Correction::new("", why.reason()).unwrap_or_default();
            }
            Change::Add(_) | Change::Expire { .. } | Change::Read(_) | Change::Sweep { .. } => {}
        }
        payload.details = payload.details.filter(|details| *details != Details::default());
        payload
    }
}

/// Adds events to a call, in their groups; plain adds that say the same in a row all at once.
pub fn push_all(events: &[Event], call: &mut tally_core::batch::Events) {
    for run in runs(events) {
        match run {
            Run::Adds { key, delta, times } => call.add_times(key.as_ref(), delta, times),
            Run::Group([event]) => event.push_to(call),
            Run::Group(group) => call.group(|call| group.iter().for_each(|event| event.push_to(call))),
        }
    }
}

/// The outcome of each event, given those of a call that [`push_all`] filled.
#[must_use]
pub fn of_each(events: &[Event], outcomes: &[Outcome]) -> Vec<Outcome> {
    let mut outcomes = outcomes.iter().copied();
    let mut each = Vec::new();
    for run in runs(events) {
        match run {
            Run::Adds { delta, times, .. } => each.extend(outcomes.next().into_iter().flat_map(|together| {
                let applied = together.applied_times(delta, times);
                (1..=times).map(move |nth| {
                    let behind = i64::from(applied.saturating_sub(nth));
                    match nth <= applied {
                        true => Outcome {
                            value: together.value.wrapping_sub(delta.wrapping_mul(behind)),
                            applied: delta,
                            refusal: None,
                            ..together
                        },
                        false => Outcome { applied: 0, ..together },
                    }
                })
            })),
            Run::Group(group) => each.extend(outcomes.by_ref().take(group.len())),
        }
    }
    each
}

/// Events that go into a call at once.
enum Run<'a> {
    /// Plain adds that say the same.
    Adds { key: &'a Key, delta: i64, times: u32 },
    /// One group, or a single event.
    Group(&'a [Event]),
}

fn runs(events: &[Event]) -> impl Iterator<Item = Run<'_>> {
    let mut groups = events.chunk_by(|_, next| next.grouped).peekable();
    std::iter::from_fn(move || {
        let group = groups.next()?;
        let [Event { key, change: Change::Add(delta), id: None, details: None, .. }] = group else {
            return Some(Run::Group(group));
        };
        let mut times = 1;
        while groups.next_if_eq(&group).is_some() {
            times += 1;
        }
        Some(Run::Adds { key, delta: *delta, times })
    })
}

/// A counter from its first change to its deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// The value.
    pub value: i64,
    /// Everything added.
    pub plus: u128,
    /// Everything taken away.
    pub minus: u128,
    /// Lowest value.
    pub min: i64,
    /// Highest value.
    pub max: i64,
    /// First change.
    pub created: u64,
    /// Last change.
    pub updated: u64,
    /// Every increment and when it happened.
    increments: Vec<(u64, i64)>,
    /// When it expires.
    pub expires: Option<u64>,
}

/// What was answered to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What was asked.
    pub payload: Event,
    /// When.
    pub at: u64,
    /// The answer.
    pub outcome: Outcome,
}

/// The whole state.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Counters that exist.
    pub counters: BTreeMap<Key, Life>,
    /// Corrections by counter, whether or not it still exists.
    pub ledger: BTreeMap<Key, Vec<LedgerEntry>>,
    /// Requests by namespace and id.
    pub requests: BTreeMap<(Vec<u8>, Vec<u8>), Answered>,
    clock: u64,
}

impl Model {
    /// The time of the last event.
    #[must_use]
    pub fn clock(&self) -> Millis {
        Millis(self.clock)
    }

    /// Applies one event.
    pub fn apply(&mut self, at: Millis, event: &Event) -> Outcome {
        self.advance(at);
        let outcome = self.answer(event);
        self.advance(at);
        outcome
    }

    /// Applies events as one batch: if all of them only read, no time passes.
    pub fn apply_all(&mut self, at: Millis, events: &[Event]) -> Vec<Outcome> {
        match events.iter().all(Event::is_read) {
            true => events.iter().map(|event| self.read(at, event)).collect(),
            false => events.iter().map(|event| self.apply(at, event)).collect(),
        }
    }

    /// Lets time pass: what has expired is gone.
    fn advance(&mut self, at: Millis) {
        self.clock = self.clock.max(at.0);
        let now = self.clock();
        self.counters.retain(|_, life| life.exists(now));
    }

    /// The counter as a reader at `now` sees it.
    #[must_use]
    pub fn seen(&self, key: &Key, now: Millis) -> Option<&Life> {
        self.counters.get(key).filter(|life| life.exists(now))
    }

    /// The counters as a reader at `now` sees them.
    pub fn all_seen(&self, now: Millis) -> impl Iterator<Item = (&Key, &Life)> {
        self.counters.iter().filter(move |(_, life)| life.exists(now))
    }

    fn answer(&mut self, event: &Event) -> Outcome {
        let Some(id) = event.id.as_ref().filter(|_| !event.is_read()) else { return self.change(event) };
        let name = (event.key.as_ref().namespace().to_vec(), id.clone());
        if let Some(answered) = self.requests.get(&name).filter(|answered| !is_forgotten(answered.at, self.clock)) {
            return if answered.payload == event.payload() {
                Outcome { duplicate: Some(true), ..answered.outcome }
            } else {
                self.refused(event, Refusal::PayloadMismatch)
            };
        }
        let outcome = self.change(event);
        self.requests.insert(name, Answered { payload: event.payload(), at: self.clock, outcome });
        outcome
    }

    /// Whether the request is remembered, as of the last event.
    #[must_use]
    pub fn remembers(&self, name: &(Vec<u8>, Vec<u8>)) -> bool {
        self.requests.get(name).is_some_and(|answered| !is_forgotten(answered.at, self.clock))
    }

    fn change(&mut self, event: &Event) -> Outcome {
        let value = self.counters.get(&event.key).map_or(0, |life| life.value);
        match &event.change {
            Change::Add(delta) => {
                let bounds = event.details.as_ref().and_then(|details| details.bounds);
                match bounds.map_or(Some(i128::from(*delta)), |bounds| allowed(bounds, value, *delta)) {
                    None => self.refused(event, Refusal::Bound),
                    // What was applied must fit into an answer.
                    Some(delta) if i64::try_from(delta).is_err() => self.refused(event, Refusal::Overflow),
                    Some(delta) => {
                        let given = event.details.as_ref().and_then(|details| details.expiry);
                        let expiry = match given {
                            Some(given) if !given.only_if_none || self.expires(&event.key).is_none() => {
                                given.at.map_or(Expiry::Never, Expiry::At)
                            }
                            _ => Expiry::Keep,
                        };
                        self.shift(event, delta, expiry, Shift::Increment)
                    }
                }
            }
            Change::Set { when, .. } if !self.allows(*when, &event.key) => self.refused(event, Refusal::NotExpected),
            Change::Set { value: target, expiry, why, .. } => {
                let delta = i128::from(*target) - i128::from(value);
                self.shift(event, delta, *expiry, Shift::Correction(CorrectionKind::Set, why))
            }
            Change::Reset(why) => {
                let reset = Shift::Correction(CorrectionKind::Reset, why);
                self.shift(event, -i128::from(value), Expiry::Keep, reset)
            }
            Change::Adjust { delta, why } => {
                let adjusted = Shift::Correction(CorrectionKind::Adjust, why);
                self.shift(event, i128::from(*delta), Expiry::Keep, adjusted)
            }
            Change::Delete(why) => {
                if self.counters.remove(&event.key).is_some() {
                    self.record(&event.key, CorrectionKind::Delete, why, (value, 0));
                }
                let applied = 0i64.saturating_sub(value);
                Outcome {
                    value: 0,
                    applied,
                    exists: false,
                    exact: true,
                    duplicate: Some(false),
                    refusal: None,
                    at: self.clock(),
                }
            }
            Change::Expire { at, when } => {
                let at = at.map(|at| at.resolve(self.clock()));
                let applied = i64::from(self.expire(&event.key, at, *when));
                // A moment in the past takes effect at once.
                self.advance(Millis(0));
                Outcome { applied, ..self.standing(event) }
            }
            Change::Read(_) => self.read(self.clock(), event),
            // What has expired is gone from here already.
            Change::Sweep { .. } => self.standing(event),
        }
    }

    /// What an event that only reads tells at `now`.
    #[must_use]
    pub fn read(&self, now: Millis, event: &Event) -> Outcome {
        let at = now.max(self.clock());
        let found = self.seen(&event.key, at);
        let number = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
        let value = match event.change {
            Change::Read(Field::Expiry) => found.map_or(0, |life| life.expires.map_or(-1, number)),
            _ => found.map_or(0, |life| life.value),
        };
        Outcome { value, applied: 0, exists: found.is_some(), exact: true, duplicate: Some(false), refusal: None, at }
    }

    fn expires(&self, key: &Key) -> Option<u64> {
        self.counters.get(key)?.expires
    }

    /// Says whether the expiry was set or removed.
    fn expire(&mut self, key: &Key, at: Option<Millis>, when: ExpiryCondition) -> bool {
        let Some(life) = self.counters.get_mut(key) else { return false };
        let at = at.map(|at| at.0);
        // Never is later than any moment.
        let late = |at: Option<u64>| at.map_or(u128::MAX, u128::from);
        let met = match when {
            ExpiryCondition::Always => true,
            ExpiryCondition::IfNone => life.expires.is_none(),
            ExpiryCondition::IfSome => life.expires.is_some(),
            ExpiryCondition::IfLater => late(at) > late(life.expires),
            ExpiryCondition::IfEarlier => late(at) < late(life.expires),
            ExpiryCondition::IfSomeAndEarlier => life.expires.is_some_and(|now| at.is_some_and(|at| at < now)),
        };
        let done = met && (at.is_some() || life.expires.is_some());
        if done {
            life.expires = at;
        }
        done
    }

    fn allows(&self, when: Condition, key: &Key) -> bool {
        let found = self.counters.get(key);
        match when {
            Condition::Always => true,
            Condition::Equals(expected) => expected == found.map_or(0, |life| life.value),
            Condition::Absent => found.is_none(),
            Condition::Present => found.is_some(),
        }
    }

    fn shift(&mut self, event: &Event, delta: i128, expiry: Expiry, what: Shift<'_>) -> Outcome {
        let before = self.counters.get(&event.key).map_or(0, |life| life.value);
        let Ok(value) = i64::try_from(i128::from(before) + delta) else {
            return self.refused(event, Refusal::Overflow);
        };
        let now = self.clock;
        let born = || Life { created: now, updated: now, ..Life::default() };
        let life = self.counters.entry(event.key.clone()).or_insert_with(born);
        life.value = value;
        life.plus += delta.max(0).unsigned_abs();
        life.minus += delta.min(0).unsigned_abs();
        life.min = life.min.min(value);
        life.max = life.max.max(value);
        life.updated = life.updated.max(now);
        life.expires = match expiry {
            Expiry::Keep => life.expires,
            Expiry::Never => None,
            Expiry::At(deadline) => Some(deadline.resolve(Millis(now)).0),
        };
        let exists = life.expires.is_none_or(|at| at > now);
        match what {
            Shift::Increment => life.increments.push((life.updated, delta as i64)),
            Shift::Correction(kind, why) => self.record(&event.key, kind, why, (before, value)),
        }
        let applied = value.saturating_sub(before);
        Outcome { value, applied, exists, exact: true, duplicate: Some(false), refusal: None, at: Millis(now) }
    }

    fn record(&mut self, key: &Key, kind: CorrectionKind, why: &Correction, (before, after): (i64, i64)) {
        let entries = self.ledger.entry(key.clone()).or_default();
        let previous = entries.last().map_or(CHAIN_START, |entry| entry.hash);
        let (actor, reason) = (why.actor().into(), why.reason().into());
        let seq = entries.len() as u64 + 1;
        let at = Millis(self.clock);
        let mut entry = LedgerEntry { seq, at, kind, actor, reason, before, after, previous, hash: previous };
        entry.hash = entry.expected_hash(key.as_ref());
        entries.push(entry);
    }

    fn refused(&self, event: &Event, refusal: Refusal) -> Outcome {
        Outcome { refusal: Some(refusal), ..self.standing(event) }
    }

    fn standing(&self, event: &Event) -> Outcome {
        let found = self.counters.get(&event.key);
        let value = found.map_or(0, |life| life.value);
        let (exists, at) = (found.is_some(), self.clock());
        Outcome { value, applied: 0, exists, exact: true, duplicate: Some(false), refusal: None, at }
    }
}

#[derive(Clone, Copy)]
enum Shift<'a> {
    Increment,
    Correction(CorrectionKind, &'a Correction),
}

/// A request is remembered until the generation after the window has ended.
fn is_forgotten(at: u64, now: u64) -> bool {
    now / GENERATION_MS > at / GENERATION_MS + IDEMPOTENCY_WINDOW_MS / GENERATION_MS
}

/// How much of `delta` the bounds let through; they stop what moves away beyond them, and nothing else.
fn allowed(bounds: Bounds, value: i64, delta: i64) -> Option<i128> {
    let (value, delta) = (i128::from(value), i128::from(delta));
    let floor = bounds.floor.map_or(i128::MIN, i128::from);
    let ceiling = bounds.ceiling.map_or(i128::MAX, i128::from);
    let target = value + delta;
    let crosses = (delta < 0 && target < floor) || (delta >= 0 && target > ceiling);
    match bounds.on_bound {
        OnBound::Refuse if crosses => None,
        OnBound::Refuse => Some(delta),
        OnBound::Saturate => {
            let (lowest, highest) = (i128::from(i64::MIN), i128::from(i64::MAX));
            let reached = if delta < 0 {
                target.max(floor.min(value)).max(lowest)
            } else {
                target.min(ceiling.max(value)).min(highest)
            };
            Some(reached - value)
        }
        OnBound::RefuseOutside => {
            let fits = i64::try_from(target).is_ok() && floor <= target && target <= ceiling;
            fits.then_some(delta)
        }
        OnBound::Clamp if floor > ceiling => ((floor..=ceiling).contains(&target)).then_some(delta),
        OnBound::Clamp => {
            let (lowest, highest) = (floor.max(i64::MIN.into()), ceiling.min(i64::MAX.into()));
            Some(target.max(lowest).min(highest) - value)
        }
    }
}

impl Life {
    fn exists(&self, now: Millis) -> bool {
        self.expires.is_none_or(|at| at > now.0)
    }

    /// Net change per second over the last second, minute and hour: all of the window under way, and of the one
    /// before the share that the sliding window still covers. Nothing if the sums come near to where they are cut off.
    #[must_use]
    pub fn rates(&self, now: Millis) -> Option<[f64; 3]> {
        let now = now.0.max(self.updated);
        let rates = WINDOWS_MS.map(|length| {
            let sum = |window: Option<u64>| {
                let within = self.increments.iter().filter(|(at, _)| Some(at / length) == window);
                within.map(|(_, delta)| i128::from(*delta)).sum::<i128>() as f64
            };
            let window = now / length;
            let left = 1.0 - (now % length) as f64 / length as f64;
            (sum(Some(window)) + sum(window.checked_sub(1)) * left) * 1000.0 / length as f64
        });
        (self.plus + self.minus < 1 << 38).then_some(rates)
    }

    /// Says in what a counter differs from this, if in anything.
    pub fn compare(&self, held: &CounterState, now: Millis) -> Result<(), String> {
        let counter = &held.counter;
        if held.expires_at.map(|at| at.0) != self.expires {
            return Err(format!("expected to expire at {:?}, found {:?}", self.expires, held.expires_at));
        }
        let capped = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        let expected = (self.value, capped(self.plus), capped(self.minus), (self.min, self.max));
        let found = (counter.value(), counter.increments(), counter.decrements(), counter.extremes());
        let times = ((self.created, self.updated), (counter.created.0, counter.updated.0));
        if expected != found || times.0 != times.1 {
            return Err(format!("expected {expected:?} {:?}, found {found:?} {:?}", times.0, times.1));
        }
        match (self.rates(now), counter.rates(now)) {
            (Some(expected), found) if expected != found => {
                Err(format!("expected rates {expected:?}, found {found:?}"))
            }
            _ => Ok(()),
        }
    }
}
