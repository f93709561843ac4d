//! What simulated callers ask for, drawn from a seed.

use tally_core::event::{Bounds, Change, Condition, Correction, Details, Expiry, OnBound};
use tally_core::key::Key;

use crate::model::Event;
use crate::rng::Rng;

/// The counter every submission adds one to: its value says how many submissions are in a state.
pub const SUBMISSIONS: &str = "submissions";

/// Counters, ids and sizes to draw from.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The counters, the one of [`SUBMISSIONS`] not among them.
    pub keys: Vec<Key>,
    /// Different request ids.
    pub ids: u64,
    /// Most events of a submission.
    pub events_max: u64,
}

impl Workload {
    /// Few counters that meet all the time, in two namespaces and none, inline and long.
    #[must_use]
    pub fn lively() -> Workload {
        let long = "likes:a counter with a name of more than twenty-one bytes";
        let names = ["a", "a\0", "ab", "b", "likes:1", "likes:10", "likes:2", long, "views:1", "views:\u{fc}", "z"];
        Workload { keys: names.iter().filter_map(|name| Key::new(name).ok()).collect(), ids: 12, events_max: 6 }
    }

    /// More counters than the smallest memory holds.
    #[must_use]
    pub fn crowded() -> Workload {
        let keys = (0..12_000).filter_map(|number| Key::new(format!("c:{number}")).ok()).collect();
        Workload { keys, ids: 400, events_max: 150 }
    }

    /// One of the counters.
    #[must_use]
    pub fn key(&self, rng: &mut Rng) -> Key {
        self.keys[rng.below(self.keys.len() as u64) as usize].clone()
    }

    /// A submission: the counter of submissions, then events of every kind.
    #[must_use]
    pub fn submission(&self, rng: &mut Rng) -> Vec<Event> {
        let more = rng.below(self.events_max + 1);
        counted((0..more).map(|_| self.event(rng)))
    }

    fn event(&self, rng: &mut Rng) -> Event {
        let id = rng.one_in(4).then(|| rng.below(self.ids).to_string().into_bytes());
        let change = change(rng);
        let bounded = matches!(change, Change::Add(_)) && rng.one_in(8);
        let details = bounded.then(|| Details { bounds: Some(bounds(rng)), ..Details::default() });
        Event { key: self.key(rng), change, id, details }
    }
}

/// A submission of these events: the counter of submissions comes first.
pub fn counted(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let first = Key::new(SUBMISSIONS).ok().map(|key| Event::add(&key, 1));
    first.into_iter().chain(events).collect()
}

fn change(rng: &mut Rng) -> Change {
    let why = |rng: &mut Rng| {
        let reason = "because ".repeat(rng.below(5) as usize);
        Correction { actor: format!("actor {}", rng.below(3)).into(), reason: reason.into() }
    };
    match rng.below(24) {
        0 => Change::Set { value: amount(rng), when: Condition::Always, expiry: Expiry::Keep, why: why(rng) },
        1 => {
            let when = Condition::Equals(rng.below(4) as i64);
            Change::Set { value: amount(rng), when, expiry: Expiry::Keep, why: why(rng) }
        }
        2 => Change::Reset(why(rng)),
        3 => Change::Adjust { delta: amount(rng), why: why(rng) },
        4 | 5 => Change::Delete(why(rng)),
        _ => Change::Add(amount(rng)),
    }
}

fn amount(rng: &mut Rng) -> i64 {
    let amount = if rng.one_in(10) { rng.below(1 << 40) } else { rng.below(4) } as i64;
    if rng.one_in(3) { -amount } else { amount }
}

fn bounds(rng: &mut Rng) -> Bounds {
    let ways = [OnBound::Refuse, OnBound::Saturate, OnBound::RefuseOutside, OnBound::Clamp];
    let on_bound = ways[rng.below(ways.len() as u64) as usize];
    Bounds { floor: rng.one_in(2).then_some(0), ceiling: rng.one_in(2).then_some(10), on_bound }
}
