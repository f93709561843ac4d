//! A second, naive implementation of the partition to compare with.
//!
//! No batches, no combining, no memory budget, no digests: maps, lists and one event after another. If the two
//! disagree, one of them is wrong.

use std::collections::BTreeMap;

use tally_core::counter::{Counter, CounterParts, CounterState};
use tally_core::event::{
    Bounds, Change, Condition, Correction, Details, Expiry, ExpiryCondition, Field, OnBound, RequestId, VERSION_ABSENT,
};
use tally_core::import::{Existing, ImportPart, ImportedCounter};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::{CHAIN_START, CorrectionKind, LedgerEntry};
use tally_core::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS};
use tally_core::outcome::{Outcome, Refusal};
use tally_core::partition::read_field;
use tally_core::rates::WINDOWS_MS;
use tally_core::sub_counters::SubCounter;
use tally_core::time::Millis;

/// One event, in owned form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The counter.
    pub key: Key,
    /// What the event does.
    pub change: Change,
    /// The request id.
    pub id: Option<Vec<u8>>,
    /// Optional details.
    pub details: Option<Details>,
    /// Whether it is in the same group as the previous event.
    pub grouped: bool,
}

impl Event {
    /// A plain increment.
    #[must_use]
    pub fn add(key: &Key, delta: i64) -> Event {
        Event { key: key.clone(), change: Change::Add(delta), id: None, details: None, grouped: false }
    }

    /// The digest of the request id; `None` if there is none or it is invalid.
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        RequestId::new(self.key.as_ref(), self.id.as_deref()?).ok()
    }

    /// Adds the event to a call.
    pub fn push_to(&self, call: &mut tally_core::batch::Events) {
        call.push(self.key.as_ref(), self.change.clone(), self.request_id(), self.details.clone());
    }

    /// Whether it is a read.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self.change, Change::Read(_))
    }

    /// The counter and the version that it guards, if it is a guard.
    #[must_use]
    pub fn guard(&self) -> Option<(KeyRef<'_>, i64)> {
        match self.change {
            Change::Guard { version, .. } => Some((self.key.as_ref(), version)),
            _ => None,
        }
    }

    /// What must be equal in a repeat of the request: everything except the actor and the group.
    fn payload(&self) -> Event {
        let mut payload = Event { grouped: false, ..self.clone() };
        match &mut payload.change {
            Change::Set { why, .. } | Change::Adjust { why, .. } | Change::Reset(why) | Change::Delete(why) => {
                *why = Correction::new("", why.reason()).unwrap_or_default();
            }
            Change::Add(_) | Change::Expire { .. } | Change::Read(_) | Change::Sweep { .. } | Change::Sum(_) => {}
            Change::Import(_) | Change::ImportRequest(_) | Change::Guard { .. } => {}
        }
        payload.details = payload.details.filter(|details| *details != Details::default());
        payload
    }
}

/// A counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelCounter {
    /// The value.
    pub value: i64,
    /// Sum of all additions.
    pub plus: u128,
    /// Sum of all subtractions.
    pub minus: u128,
    /// Lowest value.
    pub min: i64,
    /// Highest value.
    pub max: i64,
    /// First change.
    pub created: u64,
    /// Last change.
    pub updated: u64,
    /// Every increment, with its time.
    increments: Vec<(u64, i64)>,
    /// When it expires.
    pub expires: Option<u64>,
}

/// A request and its first outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// The request.
    pub payload: Event,
    /// The time of the request.
    pub at: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

/// The sub-counter of a report before it has counted anything.
fn fresh(report: &SubCounter) -> SubCounter {
    SubCounter { increments: 0, decrements: 0, is_closed: false, ..*report }
}

/// The state.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Counters that exist.
    pub counters: BTreeMap<Key, ModelCounter>,
    /// Corrections by counter, including deleted counters.
    pub ledger: BTreeMap<Key, Vec<LedgerEntry>>,
    /// What is summed of sub-counters, by counter.
    shards: BTreeMap<Key, BTreeMap<u32, SubCounter>>,
    /// Requests by namespace and id.
    pub requests: BTreeMap<(Vec<u8>, Vec<u8>), AnsweredRequest>,
    clock: u64,
    /// A guard of the current group was refused, and so is the rest of it.
    is_group_refused: bool,
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
        self.is_group_refused &= event.grouped;
        let outcome = match self.is_group_refused && !event.is_read() {
            true => self.refused(event, Refusal::NotExpected),
            false => self.answer(event),
        };
        self.advance(at);
        outcome
    }

    /// Applies events as one batch. A read-only batch does not advance the clock.
    pub fn apply_all(&mut self, at: Millis, events: &[Event]) -> Vec<Outcome> {
        match events.iter().all(Event::is_read) {
            true => events.iter().map(|event| self.read(at, event)).collect(),
            false => events.iter().map(|event| self.apply(at, event)).collect(),
        }
    }

    /// Advances the clock and removes expired counters.
    fn advance(&mut self, at: Millis) {
        self.clock = self.clock.max(at.0);
        let now = self.clock();
        self.counters.retain(|_, counter| counter.exists(now));
    }

    /// The counter, if it exists at `now`.
    #[must_use]
    pub fn visible(&self, key: &Key, now: Millis) -> Option<&ModelCounter> {
        self.counters.get(key).filter(|counter| counter.exists(now))
    }

    /// The counters that exist at `now`.
    pub fn all_visible(&self, now: Millis) -> impl Iterator<Item = (&Key, &ModelCounter)> {
        self.counters.iter().filter(move |(_, counter)| counter.exists(now))
    }

    fn answer(&mut self, event: &Event) -> Outcome {
        let Some(id) = event.id.as_ref().filter(|_| !event.is_read()) else { return self.change(event) };
        let name = (event.key.as_ref().namespace().to_vec(), id.clone());
        if let Some(answered) = self.requests.get(&name).filter(|answered| !is_expired(answered.at, self.clock)) {
            return if answered.payload == event.payload() {
                Outcome { duplicate: Some(true), ..answered.outcome }
            } else {
                self.refused(event, Refusal::PayloadMismatch)
            };
        }
        let outcome = self.change(event);
        self.requests.insert(name, AnsweredRequest { payload: event.payload(), at: self.clock, outcome });
        outcome
    }

    /// Whether a repeat of the request would be a duplicate, as of the last event.
    #[must_use]
    pub fn remembers(&self, name: &(Vec<u8>, Vec<u8>)) -> bool {
        self.requests.get(name).is_some_and(|answered| !is_expired(answered.at, self.clock))
    }

    fn change(&mut self, event: &Event) -> Outcome {
        let value = self.counters.get(&event.key).map_or(0, |counter| counter.value);
        match &event.change {
            Change::Add(delta) => {
                let bounds = event.details.as_ref().and_then(|details| details.bounds);
                match bounds.map_or(Some(i128::from(*delta)), |bounds| allowed(bounds, value, *delta)) {
                    None => self.refused(event, Refusal::Bound),
                    // `Outcome::applied` must fit 64 bits.
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
                // An expiry in the past takes effect at once.
                self.advance(Millis(0));
                Outcome { applied, ..self.unchanged(event) }
            }
            Change::Read(_) => self.read(self.clock(), event),
            // The model removes expired counters by itself.
            Change::Sweep { .. } => self.unchanged(event),
            Change::Sum(reports) => self.sum(event, reports.as_slice()),
            Change::Import(imported) => self.import(event, imported),
            Change::Guard { version, .. } if *version == self.version(&event.key, self.clock()) => {
                self.unchanged(event)
            }
            Change::Guard { .. } => {
                self.is_group_refused = true;
                self.refused(event, Refusal::NotExpected)
            }
            // The model knows requests by their payload, which an imported one does not have.
            Change::ImportRequest(_) => self.unchanged(event),
        }
    }

    /// Adds what the reports say beyond the largest earlier ones.
    fn sum(&mut self, event: &Event, reports: &[SubCounter]) -> Outcome {
        let mut shards = self.shards.get(&event.key).cloned().unwrap_or_default();
        let (mut plus, mut minus) = (0, 0);
        for report in reports {
            let known = shards.entry(report.shard).or_insert_with(|| fresh(report));
            if report.incarnation < known.incarnation {
                continue;
            }
            if report.incarnation > known.incarnation {
                *known = fresh(report);
            }
            let is_news = report.increments > known.increments || report.decrements > known.decrements;
            plus += u128::from(report.increments.saturating_sub(known.increments));
            minus += u128::from(report.decrements.saturating_sub(known.decrements));
            known.increments = known.increments.max(report.increments);
            known.decrements = known.decrements.max(report.decrements);
            known.is_closed = report.is_closed || known.is_closed && !is_news;
        }
        if (plus, minus) == (0, 0) {
            self.shards.insert(event.key.clone(), shards);
            return self.unchanged(event);
        }
        let delta = i128::try_from(plus).unwrap_or(i128::MAX) - i128::try_from(minus).unwrap_or(i128::MAX);
        // A sum stops at the end of the range.
        let value = i128::from(self.counters.get(&event.key).map_or(0, |counter| counter.value));
        let delta = delta.clamp(i128::from(i64::MIN) - value, i128::from(i64::MAX) - value);
        let outcome = self.shift(event, delta, Expiry::Keep, Shift::Increment);
        if outcome.refusal.is_none() {
            self.shards.insert(event.key.clone(), shards);
            if let Some(counter) = self.counters.get_mut(&event.key) {
                counter.plus += plus.min(minus);
                counter.minus += plus.min(minus);
            }
        }
        outcome
    }

    fn import(&mut self, event: &Event, imported: &ImportedCounter) -> Outcome {
        let here = self.ledger.get(&event.key).map_or(&[][..], Vec::as_slice);
        let entries = imported.entries();
        let before = entries.first().map_or(0, |first| first.seq as usize - 1);
        let whole: Vec<LedgerEntry> = here.iter().take(before).chain(entries).cloned().collect();
        let is_chain = entries.first().is_none_or(|first| {
            whole.get(before.wrapping_sub(1)).map_or(CHAIN_START, |last| last.hash) == first.previous
        });
        let is_part = imported.part() == ImportPart::Ledger;
        let longer_here = is_part && here.len() > whole.len();
        if here.len() < before || !longer_here && (!is_chain || !whole.starts_with(here)) {
            return self.refused(event, Refusal::LedgerDiffers);
        }
        let found = self.counters.get(&event.key);
        let brought = match imported.part() {
            ImportPart::Last(state) => {
                state.map(|state| ModelCounter::of(&state)).filter(|counter| counter.exists(self.clock()))
            }
            ImportPart::Ledger => None,
        };
        let same = match (&brought, found) {
            (Some(brought), Some(found)) => brought.is_same(found),
            (brought, found) => is_part || brought.is_none() && found.is_none(),
        };
        let changes = !same || !longer_here && whole.len() > here.len();
        if changes && found.is_some() && imported.existing() == Existing::Refuse {
            return self.refused(event, Refusal::NotExpected);
        }
        if !same {
            self.counters.remove(&event.key);
            self.counters.extend(brought.map(|counter| (event.key.clone(), counter)));
        }
        if !longer_here && !whole.is_empty() {
            self.ledger.insert(event.key.clone(), whole);
        }
        Outcome { applied: i64::from(changes), ..self.unchanged(event) }
    }

    /// The outcome of a read at `now`.
    #[must_use]
    pub fn read(&self, now: Millis, event: &Event) -> Outcome {
        let at = now.max(self.clock());
        let found = self.visible(&event.key, at);
        let number = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
        let value = match event.change {
            Change::Read(Field::Expiry) => found.map_or(0, |counter| counter.expires.map_or(-1, number)),
            Change::Read(Field::Version) => self.version(&event.key, at),
            _ => found.map_or(0, |counter| counter.value),
        };
        Outcome { value, applied: 0, exists: found.is_some(), exact: true, duplicate: Some(false), refusal: None, at }
    }

    /// The version of a counter, as a client reads it at `now` to guard a change.
    #[must_use]
    pub fn version(&self, key: &Key, now: Millis) -> i64 {
        let state = self.visible(key, now).and_then(ModelCounter::state);
        state.map_or(VERSION_ABSENT, |state| read_field(Some(&state), Field::Version, now).value)
    }

    fn expires(&self, key: &Key) -> Option<u64> {
        self.counters.get(key)?.expires
    }

    /// Returns whether the expiry was set or removed.
    fn expire(&mut self, key: &Key, at: Option<Millis>, when: ExpiryCondition) -> bool {
        let Some(counter) = self.counters.get_mut(key) else { return false };
        let at = at.map(|at| at.0);
        // No expiry is later than any expiry.
        let late = |at: Option<u64>| at.map_or(u128::MAX, u128::from);
        let met = match when {
            ExpiryCondition::Always => true,
            ExpiryCondition::IfNone => counter.expires.is_none(),
            ExpiryCondition::IfSome => counter.expires.is_some(),
            ExpiryCondition::IfLater => late(at) > late(counter.expires),
            ExpiryCondition::IfEarlier => late(at) < late(counter.expires),
            ExpiryCondition::IfSomeAndEarlier => counter.expires.is_some_and(|now| at.is_some_and(|at| at < now)),
        };
        let done = met && (at.is_some() || counter.expires.is_some());
        if done {
            counter.expires = at;
        }
        done
    }

    fn allows(&self, when: Condition, key: &Key) -> bool {
        let found = self.counters.get(key);
        match when {
            Condition::Always => true,
            Condition::Equals(expected) => expected == found.map_or(0, |counter| counter.value),
            Condition::Absent => found.is_none(),
            Condition::Present => found.is_some(),
        }
    }

    fn shift(&mut self, event: &Event, delta: i128, expiry: Expiry, what: Shift<'_>) -> Outcome {
        let before = self.counters.get(&event.key).map_or(0, |counter| counter.value);
        let Ok(value) = i64::try_from(i128::from(before) + delta) else {
            return self.refused(event, Refusal::Overflow);
        };
        let now = self.clock;
        let create = || ModelCounter { created: now, updated: now, ..ModelCounter::default() };
        let counter = self.counters.entry(event.key.clone()).or_insert_with(create);
        counter.value = value;
        counter.plus += delta.max(0).unsigned_abs();
        counter.minus += delta.min(0).unsigned_abs();
        counter.min = counter.min.min(value);
        counter.max = counter.max.max(value);
        counter.updated = counter.updated.max(now);
        counter.expires = match expiry {
            Expiry::Keep => counter.expires,
            Expiry::Never => None,
            Expiry::At(deadline) => Some(deadline.resolve(Millis(now)).0),
        };
        let exists = counter.expires.is_none_or(|at| at > now);
        match what {
            Shift::Increment => counter.increments.push((counter.updated, delta as i64)),
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
        Outcome { refusal: Some(refusal), ..self.unchanged(event) }
    }

    fn unchanged(&self, event: &Event) -> Outcome {
        let found = self.counters.get(&event.key);
        let value = found.map_or(0, |counter| counter.value);
        let (exists, at) = (found.is_some(), self.clock());
        Outcome { value, applied: 0, exists, exact: true, duplicate: Some(false), refusal: None, at }
    }
}

#[derive(Clone, Copy)]
enum Shift<'a> {
    Increment,
    Correction(CorrectionKind, &'a Correction),
}

/// Whether the idempotency window has ended, counted in whole generations.
fn is_expired(at: u64, now: u64) -> bool {
    now / GENERATION_MS > at / GENERATION_MS + IDEMPOTENCY_WINDOW_MS / GENERATION_MS
}

/// The part of `delta` that the bounds allow, or `None` if they refuse it.
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

impl ModelCounter {
    /// A counter of another engine. It must have no rates: the model derives them from increments.
    fn of(state: &CounterState) -> ModelCounter {
        let parts = state.counter.parts();
        ModelCounter {
            value: state.counter.value(),
            plus: parts.increments,
            minus: parts.decrements,
            min: parts.min,
            max: parts.max,
            created: parts.created.0,
            updated: parts.updated.0,
            increments: Vec::new(),
            expires: state.expires_at.map(|at| at.0),
        }
    }

    /// As an engine has it, but without rates.
    fn state(&self) -> Option<CounterState> {
        let parts = CounterParts {
            increments: self.plus,
            decrements: self.minus,
            min: self.min,
            max: self.max,
            created: Millis(self.created),
            updated: Millis(self.updated),
            rates: [0; 6],
        };
        Counter::from_parts(&parts).map(|counter| CounterState { counter, expires_at: self.expires.map(Millis) })
    }

    /// Whether both are the same import. Every change moves `updated` or the expiry.
    fn is_same(&self, other: &ModelCounter) -> bool {
        let same_times = (self.created, self.updated, self.expires) == (other.created, other.updated, other.expires);
        same_times && (self.plus, self.minus, self.min, self.max) == (other.plus, other.minus, other.min, other.max)
    }

    fn exists(&self, now: Millis) -> bool {
        self.expires.is_none_or(|at| at > now.0)
    }

    /// Net change per second over the last second, minute and hour: the current window, plus the fraction of the
    /// previous one that the sliding window still covers. `None` if the sums could saturate.
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

    /// Compares a counter with this one; the error describes the difference.
    pub fn compare(&self, state: &CounterState, now: Millis) -> Result<(), String> {
        let counter = &state.counter;
        if state.expires_at.map(|at| at.0) != self.expires {
            return Err(format!("expected to expire at {:?}, found {:?}", self.expires, state.expires_at));
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
