//! Turns callers' events into one call of the engine, and its outcomes back into one per event.

use tally_core::event::Change;
use tally_core::key::{Key, KeyRef};
use tally_core::outcome::Outcome;

use crate::model::Event;

/// Adds events to a call, in their groups. Equal plain adds in a row become one [`Events::add_times`].
///
/// [`Events::add_times`]: tally_core::batch::Events::add_times
pub fn push_all(events: &[Event], call: &mut tally_core::batch::Events) {
    for unit in push_units(events) {
        match unit {
            PushUnit::Adds { key, delta, times } => call.add_times(key.as_ref(), delta, times),
            PushUnit::Group(group) => push_group(group, call),
        }
    }
}

/// Adds a group, or a single event. The guards of a group come first.
fn push_group(group: &[Event], call: &mut tally_core::batch::Events) {
    let guards: Vec<(KeyRef<'_>, i64)> = group.iter().map_while(Event::guard).collect();
    match (guards.len(), group) {
        (0, [event]) => event.push_to(call),
        (count, _) => {
            call.group_if(&guards, |call| group.iter().skip(count).for_each(|event| event.push_to(call)));
        }
    }
}

/// The outcome of each event, given the outcomes of a call filled by [`push_all`].
#[must_use]
pub fn outcome_per_event(events: &[Event], outcomes: &[Outcome]) -> Vec<Outcome> {
    let mut outcomes = outcomes.iter().copied();
    let mut each = Vec::new();
    for unit in push_units(events) {
        match unit {
            PushUnit::Adds { delta, times, .. } => each.extend(outcomes.next().into_iter().flat_map(|joint| {
                let applied = joint.applied_times(delta, times);
                (1..=times).map(move |nth| {
                    let behind = i64::from(applied.saturating_sub(nth));
                    match nth <= applied {
                        true => Outcome {
                            value: joint.value.wrapping_sub(delta.wrapping_mul(behind)),
                            applied: delta,
                            refusal: None,
                            ..joint
                        },
                        false => Outcome { applied: 0, ..joint },
                    }
                })
            })),
            PushUnit::Group(group) => each.extend(outcomes.by_ref().take(group.len())),
        }
    }
    each
}

/// Events that are added to a call together.
enum PushUnit<'a> {
    /// Equal plain adds.
    Adds { key: &'a Key, delta: i64, times: u32 },
    /// One group, or a single event.
    Group(&'a [Event]),
}

fn push_units(events: &[Event]) -> impl Iterator<Item = PushUnit<'_>> {
    let mut groups = events.chunk_by(|_, next| next.grouped).peekable();
    std::iter::from_fn(move || {
        let group = groups.next()?;
        let [Event { key, change: Change::Add(delta), id: None, details: None, .. }] = group else {
            return Some(PushUnit::Group(group));
        };
        let mut times = 1;
        while groups.next_if_eq(&group).is_some() {
            times += 1;
        }
        Some(PushUnit::Adds { key, delta: *delta, times })
    })
}
