//! What each kind of event does to its counter. One that has expired does not exist, whether or not it still takes room.

use super::Partition;
use crate::counter::{CounterState, Overflow, is_due};
use crate::counter_table::CellId;
use crate::event::{
    AddExpiry, Adds, Bounds, Change, ChangeRef, Condition, Correction, Details, EventRef, Expiry, ExpiryCondition,
    Field, OnBound,
};
use crate::ledger::CorrectionKind;
use crate::outcome::{Outcome, Outcomes, Refusal, Split};
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

    /// Applies an event that is not combined of several.
    #[inline]
    pub(super) fn change_one(&mut self, event: &EventRef<'_>, hint: Option<CellId>) -> Outcome {
        match event.change {
            ChangeRef::Add(delta) => self.add(event, delta, hint),
            ChangeRef::Other(change) => self.change_other(event, change, hint),
            // Combined adds have no request id, so they never come here.
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
            Change::Adjust { delta, why } => match self.standing(event).value.checked_add(*delta) {
                Some(target) => self.correct(event, target, Expiry::Keep, CorrectionKind::Adjust, why),
                None => self.refused(event, Refusal::Overflow),
            },
            Change::Delete(why) => self.delete(event, why),
            Change::Expire { at, when } => self.expire(event, at.map(|at| at.resolve(self.clock)), *when),
            Change::Read(field) => read_field(self.live_state(event).as_ref(), *field, self.clock),
            Change::Sweep { expires_at } => self.sweep(event, *expires_at),
        }
    }

    /// The cell of the event's counter, given a guess. The event before may have created or removed the counter since the
    /// guess was made.
    #[inline]
    fn find(&self, event: &EventRef<'_>, hint: Option<CellId>) -> Option<CellId> {
        match hint {
            Some(id) if self.table.holds(id, event.key.as_bytes()) => hint,
            _ => self.table.find(event.hash, event.key.as_bytes()),
        }
    }

    /// Applies combined adds: all at once if their sum fits, otherwise one by one as far as they do.
    fn add_all(&mut self, event: &EventRef<'_>, adds: Adds<'_>, hint: Option<CellId>, outcomes: &mut Outcomes) {
        let found = self.find(event, hint);
        let (mut held, expiry_before) = self.state_in(found);
        if held.counter.add(self.clock, adds.sum()) == Ok(()) {
            self.keep(found, expiry_before, event, &held);
            // The sum from one end of the range to the other wraps; see `Outcome::applied_times`.
            return outcomes.push(self.changed(&held, adds.sum() as i64));
        }
        let before = held.counter.value();
        let (after, split) = Split::of(before, adds.runs());
        let applied = i128::from(after) - i128::from(before);
        // Adds of zero count as well.
        if split.has_applied() {
            // In range by construction.
            let _ = held.counter.add(self.clock, applied);
            self.keep(found, expiry_before, event, &held);
        }
        let outcome = Outcome { refusal: Some(Refusal::Overflow), ..self.changed(&held, applied as i64) };
        outcomes.push_split(outcome, split);
    }

    fn add(&mut self, event: &EventRef<'_>, delta: i64, hint: Option<CellId>) -> Outcome {
        let found = self.find(event, hint);
        let (mut held, expiry_before) = self.state_in(found);
        let delta = match event.details.and_then(|details| details.bounds) {
            None => delta,
            Some(bounds) => match within(bounds, held.counter.value(), delta) {
                Ok(delta) => delta,
                Err(refusal) => return self.refused(event, refusal),
            },
        };
        if held.counter.add(self.clock, i128::from(delta)) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        held.expires_at = expiry_after_add(held.expires_at, event.details, self.clock);
        self.keep(found, expiry_before, event, &held);
        self.changed(&held, delta)
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
        let (mut held, expiry_before) = self.state_in(found);
        let before = held.counter.value();
        if held.counter.correct(self.clock, target) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        held.expires_at = match expiry {
            Expiry::Keep => held.expires_at,
            Expiry::Never => None,
            Expiry::At(deadline) => Some(deadline.resolve(self.clock)),
        };
        self.keep(found, expiry_before, event, &held);
        self.ledger_heads.append(event.key, self.clock, kind, why, (before, target));
        // A swing across the whole range does not fit; the value afterwards says what happened.
        self.changed(&held, target.saturating_sub(before))
    }

    fn delete(&mut self, event: &EventRef<'_>, why: &Correction) -> Outcome {
        let gone = Outcome { at: self.clock, ..Outcome::EMPTY };
        let Some(id) = self.live(event) else {
            return gone;
        };
        let before = self.table.counter(id).value();
        self.forget(id);
        self.ledger_heads.append(event.key, self.clock, CorrectionKind::Delete, why, (before, 0));
        Outcome { applied: 0i64.saturating_sub(before), ..gone }
    }

    fn expire(&mut self, event: &EventRef<'_>, at: Option<Millis>, when: ExpiryCondition) -> Outcome {
        let Some(id) = self.live(event) else {
            return self.standing(event);
        };
        let now = self.table.expiry(id);
        let nothing_to_remove = at.is_none() && now.is_none();
        if nothing_to_remove || !may_expire(when, now, at) {
            return self.standing(event);
        }
        self.save_preimage(id);
        let before = self.table.put_expiry(id, at);
        self.note_expiry(before, at);
        self.table.touch(id);
        self.dirty.set(id as usize);
        Outcome { applied: 1, ..self.standing(event) }
    }

    /// Whether what stands there meets the condition.
    fn allows(&self, event: &EventRef<'_>, when: Condition) -> bool {
        match when {
            Condition::Always => true,
            Condition::Equals(expected) => self.standing(event).value == expected,
            Condition::Absent => self.live(event).is_none(),
            Condition::Present => self.live(event).is_some(),
        }
    }

    /// The cell of the event's counter, if the counter exists.
    fn live(&self, event: &EventRef<'_>) -> Option<CellId> {
        let found = self.table.find(event.hash, event.key.as_bytes());
        found.filter(|&id| !is_due(self.table.expiry(id), self.clock))
    }

    fn live_state(&self, event: &EventRef<'_>) -> Option<CounterState> {
        self.live(event).map(|id| self.table.state(id))
    }

    /// What an event finds in a cell: a new counter where there is none, or none any more. And the expiry that stands there,
    /// so that nobody has to look for it again.
    fn state_in(&self, found: Option<CellId>) -> (CounterState, Option<Millis>) {
        let Some(held) = found.map(|id| self.table.state(id)) else {
            return (CounterState::new(self.clock), None);
        };
        let expires_at = held.expires_at;
        (if is_due(expires_at, self.clock) { CounterState::new(self.clock) } else { held }, expires_at)
    }

    /// Writes a changed counter to its cell, old or new.
    fn keep(
        &mut self,
        found: Option<CellId>,
        expiry_before: Option<Millis>,
        event: &EventRef<'_>,
        held: &CounterState,
    ) {
        let id = match found {
            Some(id) => {
                self.save_preimage(id);
                self.table.put(id, &held.counter);
                if held.expires_at != expiry_before {
                    self.table.put_expiry(id, held.expires_at);
                }
                self.expired += u64::from(is_due(expiry_before, self.clock));
                self.table.touch(id);
                id
            }
            None => {
                if !self.removed.is_empty() {
                    self.removed.remove(&event.key.to_key());
                }
                let id = self.table.insert(event.hash, event.key.as_bytes(), held);
                self.created.set(id as usize);
                self.counters += 1;
                id
            }
        };
        self.note_expiry(expiry_before, held.expires_at);
        self.dirty.set(id as usize);
    }

    /// The outcome of a change that was made. One that let the counter expire at once still tells its value.
    fn changed(&self, held: &CounterState, applied: i64) -> Outcome {
        Outcome {
            value: held.counter.value(),
            applied,
            exists: !held.is_expired(self.clock),
            exact: true,
            duplicate: Some(false),
            refusal: None,
            at: self.clock,
        }
    }

    /// The counter as it stands.
    pub(super) fn standing(&self, event: &EventRef<'_>) -> Outcome {
        standing(self.live_state(event).as_ref(), self.clock)
    }

    pub(super) fn refused(&self, event: &EventRef<'_>, refusal: Refusal) -> Outcome {
        Outcome { refusal: Some(refusal), ..self.standing(event) }
    }
}

/// The outcome that only tells what stands there.
pub(super) fn standing(found: Option<&CounterState>, now: Millis) -> Outcome {
    let value = found.map_or(0, |held| held.counter.value());
    Outcome { value, exists: found.is_some(), at: now, ..Outcome::EMPTY }
}

/// What a read tells of a counter, if it exists.
pub(super) fn read_field(found: Option<&CounterState>, field: Field, now: Millis) -> Outcome {
    let standing = standing(found, now);
    match (field, found) {
        (Field::Value, _) | (_, None) => standing,
        (Field::Expiry, Some(held)) => {
            let value = held.expires_at.map_or(-1, |at| i64::try_from(at.0).unwrap_or(i64::MAX));
            Outcome { value, ..standing }
        }
    }
}

fn expiry_after_add(before: Option<Millis>, details: Option<&Details>, now: Millis) -> Option<Millis> {
    let Some(AddExpiry { at, only_if_none }) = details.and_then(|details| details.expiry) else {
        return before;
    };
    let at = at.map(|at| at.resolve(now));
    if only_if_none { before.or(at) } else { at }
}

/// Whether the expiry that stands there may become `at`.
fn may_expire(when: ExpiryCondition, now: Option<Millis>, at: Option<Millis>) -> bool {
    // No expiry is later than any.
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
        // A bound stops movement towards the far side of it; a value that already lies beyond may come back.
        OnBound::Refuse if delta < 0 => range(bounds.floor, None),
        OnBound::Refuse => range(None, bounds.ceiling),
        OnBound::Saturate if delta < 0 => range(bounds.floor.map(|floor| floor.min(value)), None),
        OnBound::Saturate => range(None, bounds.ceiling.map(|ceiling| ceiling.max(value))),
    };
    if lowest <= target && target <= highest {
        return Ok(delta);
    }
    match bounds.on_bound {
        // Without a bound on this side it is the range of numbers that is left: the counter says so itself.
        OnBound::Refuse if i64::try_from(target).is_err() && unbounded(bounds, delta) => Ok(delta),
        OnBound::Refuse | OnBound::RefuseOutside => Err(Refusal::Bound),
        // Bounds that cross have no value within.
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
