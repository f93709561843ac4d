//! How each kind of event changes its counter. An expired counter does not exist, even if it is not removed yet.

use xxhash_rust::xxh3::xxh3_64;

use super::Partition;
use crate::counter::{CounterState, Overflow, is_due};
use crate::counter_table::CellId;
use crate::event::{
    AddExpiry, Adds, Bounds, Change, ChangeRef, Condition, Correction, Details, EventRef, Expiry, ExpiryCondition,
    Field, OnBound, VERSION_ABSENT,
};
use crate::ledger::CorrectionKind;
use crate::outcome::{Outcome, Outcomes, Refusal, Split};
use crate::sub_counters::{Gain, ShardReports};
use crate::time::Millis;

impl Partition {
    /// Applies an event and appends its outcome.
    #[inline]
    pub(super) fn change(&mut self, event: &EventRef<'_>, hint: Option<CellId>, outcomes: &mut Outcomes) {
        match event.change {
            ChangeRef::Adds(adds) => self.add_all(event, adds, hint, outcomes),
            _ => outcomes.push(self.change_one(event, hint)),
        }
    }

    /// Applies an event other than combined adds.
    #[inline]
    pub(super) fn change_one(&mut self, event: &EventRef<'_>, hint: Option<CellId>) -> Outcome {
        match event.change {
            ChangeRef::Add(delta) => self.add(event, delta, hint),
            ChangeRef::Other(change) => self.change_other(event, change, hint),
            // Unreachable: `change` handles combined adds, and they have no request id.
            ChangeRef::Adds(_) => self.refused(event, Refusal::Overflow),
        }
    }

    fn change_other(&mut self, event: &EventRef<'_>, change: &Change, hint: Option<CellId>) -> Outcome {
        match change {
            Change::Add(delta) => self.add(event, *delta, hint),
            Change::Set { value, when, expiry, why } => {
                if !self.allows(event, *when) {
                    return self.refused(event, Refusal::NotExpected);
                }
                self.correct(event, *value, *expiry, CorrectionKind::Set, why)
            }
            Change::Reset(why) => self.correct(event, 0, Expiry::Keep, CorrectionKind::Reset, why),
            Change::Adjust { delta, why } => match self.unchanged(event).value.checked_add(*delta) {
                Some(target) => self.correct(event, target, Expiry::Keep, CorrectionKind::Adjust, why),
                None => self.refused(event, Refusal::Overflow),
            },
            Change::Delete(why) => self.delete(event, why),
            Change::Expire { at, when } => self.expire(event, at.map(|at| at.resolve(self.clock)), *when),
            Change::Read(field) => read_field(self.live_state(event).as_ref(), *field, self.clock),
            Change::Sweep { expires_at } => self.sweep(event, *expires_at),
            Change::Sum(reports) => self.sum(event, reports, hint),
            Change::Import(imported) => self.import(event, imported),
            Change::Guard { version, covers } => self.guard(event, *version, *covers),
            // `apply_event` handles it. Without a request id there is nothing to remember.
            Change::ImportRequest(_) => self.unchanged(event),
        }
    }

    /// The cell of the event's counter. The hint is checked: an earlier event of the batch may have created or removed
    /// the counter after the hint was made.
    #[inline]
    fn find(&self, event: &EventRef<'_>, hint: Option<CellId>) -> Option<CellId> {
        match hint {
            Some(id) if self.table.holds(id, event.key.as_bytes()) => hint,
            _ => self.table.find(event.hash, event.key.as_bytes()),
        }
    }

    /// Applies combined adds: at once if their sum fits, otherwise one by one, skipping those that overflow.
    fn add_all(&mut self, event: &EventRef<'_>, adds: Adds<'_>, hint: Option<CellId>, outcomes: &mut Outcomes) {
        let found = self.find(event, hint);
        let (mut state, expiry_before) = self.state_in(found);
        if state.counter.add(self.clock, adds.sum()) == Ok(()) {
            self.write_cell(found, expiry_before, event, &state);
            // A sum that spans the whole range wraps; see `Outcome::applied_times`.
            return outcomes.push(self.changed(&state, adds.sum() as i64));
        }
        let before = state.counter.value();
        let (after, split) = Split::of(before, adds.runs());
        let applied = i128::from(after) - i128::from(before);
        // An applied add of zero also creates and touches the counter.
        if split.has_applied() {
            // Cannot overflow: `Split::of` checked every step.
            let _ = state.counter.add(self.clock, applied);
            self.write_cell(found, expiry_before, event, &state);
        }
        let outcome = Outcome { refusal: Some(Refusal::Overflow), ..self.changed(&state, applied as i64) };
        outcomes.push_split(outcome, split);
    }

    fn add(&mut self, event: &EventRef<'_>, delta: i64, hint: Option<CellId>) -> Outcome {
        let found = self.find(event, hint);
        let (mut state, expiry_before) = self.state_in(found);
        let delta = match event.details.and_then(|details| details.bounds) {
            None => delta,
            Some(bounds) => match within(bounds, state.counter.value(), delta) {
                Ok(delta) => delta,
                Err(refusal) => return self.refused(event, refusal),
            },
        };
        if state.counter.add(self.clock, i128::from(delta)) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        state.expires_at = expiry_after_add(state.expires_at, event.details, self.clock);
        self.write_cell(found, expiry_before, event, &state);
        self.changed(&state, delta)
    }

    fn sum(&mut self, event: &EventRef<'_>, reports: &ShardReports, hint: Option<CellId>) -> Outcome {
        let key = event.key.to_key();
        let before = self.summed.get(&key).cloned().unwrap_or_default();
        let mut summed = before.clone();
        let mut gain = Gain::default();
        for report in reports.as_slice() {
            let more = summed.merge(report);
            gain.increments += more.increments;
            gain.decrements += more.decrements;
        }
        if summed == before {
            return self.unchanged(event);
        }
        if gain == Gain::default() {
            self.summed.put(event.key, summed);
            return self.unchanged(event);
        }
        let found = self.find(event, hint);
        let (mut state, expiry_before) = self.state_in(found);
        let value = state.counter.value();
        gain.limit_to_range(value);
        if state.counter.add_both(self.clock, gain.increments, gain.decrements) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        self.write_cell(found, expiry_before, event, &state);
        self.summed.put(event.key, summed);
        self.changed(&state, state.counter.value().saturating_sub(value))
    }

    fn correct(
        &mut self,
        event: &EventRef<'_>,
        target: i64,
        expiry: Expiry,
        kind: CorrectionKind,
        why: &Correction,
    ) -> Outcome {
        let found = self.table.find(event.hash, event.key.as_bytes());
        let (mut state, expiry_before) = self.state_in(found);
        let before = state.counter.value();
        if state.counter.correct(self.clock, target) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        state.expires_at = match expiry {
            Expiry::Keep => state.expires_at,
            Expiry::Never => None,
            Expiry::At(deadline) => Some(deadline.resolve(self.clock)),
        };
        self.write_cell(found, expiry_before, event, &state);
        self.ledger_heads.append(event.key, self.clock, kind, why, (before, target));
        // The change may exceed 64 bits; the value afterwards is exact.
        self.changed(&state, target.saturating_sub(before))
    }

    fn delete(&mut self, event: &EventRef<'_>, why: &Correction) -> Outcome {
        let gone = Outcome { at: self.clock, ..Outcome::EMPTY };
        let Some(id) = self.live(event) else {
            return gone;
        };
        let before = self.table.counter(id).value();
        self.remove_counter(id);
        self.ledger_heads.append(event.key, self.clock, CorrectionKind::Delete, why, (before, 0));
        Outcome { applied: 0i64.saturating_sub(before), ..gone }
    }

    fn expire(&mut self, event: &EventRef<'_>, at: Option<Millis>, when: ExpiryCondition) -> Outcome {
        let Some(id) = self.live(event) else {
            return self.unchanged(event);
        };
        let now = self.table.expiry(id);
        let nothing_to_remove = at.is_none() && now.is_none();
        if nothing_to_remove || !may_expire(when, now, at) {
            return self.unchanged(event);
        }
        self.save_preimage(id);
        let before = self.table.put_expiry(id, at);
        self.count_expiry(before, at);
        self.table.touch(id);
        self.dirty.set(id as usize);
        Outcome { applied: 1, ..self.unchanged(event) }
    }

    /// Refuses the next `covers` changes unless the counter is at this version.
    fn guard(&mut self, event: &EventRef<'_>, version: i64, covers: u32) -> Outcome {
        if version_of(self.live_state(event).as_ref()) == version {
            return self.unchanged(event);
        }
        self.refuse_next = covers;
        self.refused(event, Refusal::NotExpected)
    }

    /// Whether the current state meets the condition.
    fn allows(&self, event: &EventRef<'_>, when: Condition) -> bool {
        match when {
            Condition::Always => true,
            Condition::Equals(expected) => self.unchanged(event).value == expected,
            Condition::Absent => self.live(event).is_none(),
            Condition::Present => self.live(event).is_some(),
        }
    }

    /// The cell of the event's counter, if the counter exists.
    fn live(&self, event: &EventRef<'_>) -> Option<CellId> {
        let found = self.table.find(event.hash, event.key.as_bytes());
        found.filter(|&id| !is_due(self.table.expiry(id), self.clock))
    }

    pub(super) fn live_state(&self, event: &EventRef<'_>) -> Option<CounterState> {
        self.live(event).map(|id| self.table.state(id))
    }

    /// The state an event starts from: a new counter if there is none or it has expired. Also returns the expiry in the
    /// cell, which saves `write_cell` a second lookup.
    pub(super) fn state_in(&self, found: Option<CellId>) -> (CounterState, Option<Millis>) {
        let Some(state) = found.map(|id| self.table.state(id)) else {
            return (CounterState::new(self.clock), None);
        };
        let expires_at = state.expires_at;
        (if is_due(expires_at, self.clock) { CounterState::new(self.clock) } else { state }, expires_at)
    }

    /// Writes a changed counter to its cell, which is allocated if there is none.
    pub(super) fn write_cell(
        &mut self,
        found: Option<CellId>,
        expiry_before: Option<Millis>,
        event: &EventRef<'_>,
        state: &CounterState,
    ) {
        let id = match found {
            Some(id) => {
                self.save_preimage(id);
                self.table.put(id, &state.counter);
                if state.expires_at != expiry_before {
                    self.table.put_expiry(id, state.expires_at);
                }
                self.expired += u64::from(is_due(expiry_before, self.clock));
                self.table.touch(id);
                id
            }
            None => {
                if !self.removed.is_empty() {
                    self.removed.remove(&event.key.to_key());
                }
                let id = self.table.insert(event.hash, event.key.as_bytes(), state);
                self.created.set(id as usize);
                self.counters += 1;
                id
            }
        };
        self.count_expiry(expiry_before, state.expires_at);
        self.dirty.set(id as usize);
    }

    /// The outcome of an applied change. It has the new value even if the change made the counter expire at once.
    fn changed(&self, state: &CounterState, applied: i64) -> Outcome {
        Outcome {
            value: state.counter.value(),
            applied,
            exists: !state.is_expired(self.clock),
            exact: true,
            duplicate: Some(false),
            refusal: None,
            at: self.clock,
        }
    }

    /// The outcome of an event that changes nothing.
    pub(super) fn unchanged(&self, event: &EventRef<'_>) -> Outcome {
        unchanged_outcome(self.live_state(event).as_ref(), self.clock)
    }

    pub(super) fn refused(&self, event: &EventRef<'_>, refusal: Refusal) -> Outcome {
        Outcome { refusal: Some(refusal), ..self.unchanged(event) }
    }
}

/// The outcome of an event that changes nothing.
pub(super) fn unchanged_outcome(found: Option<&CounterState>, now: Millis) -> Outcome {
    let value = found.map_or(0, |state| state.counter.value());
    Outcome { value, exists: found.is_some(), at: now, ..Outcome::EMPTY }
}

/// The outcome of reading a field of a counter, or of one that does not exist.
#[must_use]
pub fn read_field(found: Option<&CounterState>, field: Field, now: Millis) -> Outcome {
    let unchanged = unchanged_outcome(found, now);
    match (field, found) {
        (Field::Value, _) | (Field::Expiry | Field::Version, None) => unchanged,
        (Field::Expiry, Some(state)) => {
            let value = state.expires_at.map_or(-1, |at| i64::try_from(at.0).unwrap_or(i64::MAX));
            Outcome { value, ..unchanged }
        }
        (Field::Version, Some(_)) => Outcome { value: version_of(found), ..unchanged },
    }
}

/// A digest that changes with every visible change of the counter. It covers both sums, the times and the expiry.
/// Guards in the journal contain it, so it must always be computed the same way.
fn version_of(found: Option<&CounterState>) -> i64 {
    let Some(state) = found else { return VERSION_ABSENT };
    let parts = state.counter.parts();
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(parts.increments.to_le_bytes());
    bytes.extend(parts.decrements.to_le_bytes());
    for time in [Some(parts.created), Some(parts.updated), state.expires_at] {
        bytes.extend(time.map_or(u64::MAX, |time| time.0).to_le_bytes());
    }
    // Never zero, which is `VERSION_ABSENT`.
    (xxh3_64(&bytes) | 1) as i64
}

fn expiry_after_add(before: Option<Millis>, details: Option<&Details>, now: Millis) -> Option<Millis> {
    let Some(AddExpiry { at, only_if_none }) = details.and_then(|details| details.expiry) else {
        return before;
    };
    let at = at.map(|at| at.resolve(now));
    if only_if_none { before.or(at) } else { at }
}

/// Whether the expiry may change from `now` to `at`.
fn may_expire(when: ExpiryCondition, now: Option<Millis>, at: Option<Millis>) -> bool {
    // No expiry sorts after every expiry.
    let lateness = |at: Option<Millis>| (at.is_none(), at);
    match when {
        ExpiryCondition::Always => true,
        ExpiryCondition::IfNone => now.is_none(),
        ExpiryCondition::IfSome => now.is_some(),
        ExpiryCondition::IfLater => lateness(at) > lateness(now),
        ExpiryCondition::IfEarlier => lateness(at) < lateness(now),
        ExpiryCondition::IfSomeAndEarlier => now.is_some() && lateness(at) < lateness(now),
    }
}

/// The part of `delta` that the bounds allow, or why it is refused.
fn within(bounds: Bounds, value: i64, delta: i64) -> Result<i64, Refusal> {
    let target = i128::from(value) + i128::from(delta);
    let range = |floor: Option<i64>, ceiling: Option<i64>| {
        (i128::from(floor.unwrap_or(i64::MIN)), i128::from(ceiling.unwrap_or(i64::MAX)))
    };
    let (lowest, highest) = match bounds.on_bound {
        OnBound::RefuseOutside | OnBound::Clamp => range(bounds.floor, bounds.ceiling),
        // Only the bound in the direction of the delta counts: a value already out of bounds may move back.
        OnBound::Refuse if delta < 0 => range(bounds.floor, None),
        OnBound::Refuse => range(None, bounds.ceiling),
        OnBound::Saturate if delta < 0 => range(bounds.floor.map(|floor| floor.min(value)), None),
        OnBound::Saturate => range(None, bounds.ceiling.map(|ceiling| ceiling.max(value))),
    };
    if lowest <= target && target <= highest {
        return Ok(delta);
    }
    match bounds.on_bound {
        // The value leaves the 64-bit range without crossing a bound: the add reports the overflow.
        OnBound::Refuse if i64::try_from(target).is_err() && unbounded(bounds, delta) => Ok(delta),
        OnBound::Refuse | OnBound::RefuseOutside => Err(Refusal::Bound),
        // A floor above the ceiling allows no value.
        OnBound::Saturate | OnBound::Clamp if lowest > highest => Err(Refusal::Bound),
        OnBound::Saturate | OnBound::Clamp => {
            let moved = target.clamp(lowest, highest) - i128::from(value);
            i64::try_from(moved).map_err(|_| Refusal::Overflow)
        }
    }
}

fn unbounded(bounds: Bounds, delta: i64) -> bool {
    if delta < 0 { bounds.floor.is_none() } else { bounds.ceiling.is_none() }
}
