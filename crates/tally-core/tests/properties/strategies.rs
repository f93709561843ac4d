//! Random events of every kind, with few keys and ids so that they interact.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tally_core::event::{
    AddExpiry, Bounds, Change, Condition, Correction, Deadline, Details, Dimensions, Expiry, ExpiryCondition, Field,
    Member, OnBound,
};
use tally_core::key::Key;
use tally_core::sub_counters::{ShardReports, SubCounter};
use tally_core::time::Millis;
use tally_sim::model::Event;

/// The time at which tests start.
pub const START_MS: u64 = 18_000_000;

/// The keys: in two namespaces and in none, prefixes of each other, inline and out of line.
pub fn keys() -> Vec<Key> {
    let long = "likes:a key of more than twenty-one bytes";
    let names = ["a", "b", "likes:1", "likes:10", "views:1", long, "\u{0}", "z"];
    names.map(|name| Key::new(name).unwrap()).to_vec()
}

/// Typical amounts.
pub fn modest() -> BoxedStrategy<i64> {
    prop_oneof![8 => -3i64..=9, 1 => -100_000i64..100_000].boxed()
}

/// Amounts near the ends of the 64-bit range.
pub fn extreme() -> BoxedStrategy<i64> {
    let edges = prop::sample::select(vec![i64::MAX, i64::MIN, i64::MAX - 2, i64::MIN + 2, i64::MAX / 2, i64::MIN / 2]);
    prop_oneof![6 => -3i64..=3, 2 => edges, 1 => any::<i64>()].boxed()
}

fn why() -> impl Strategy<Value = Correction> {
    ("[a-c]?", "[xyé]{0,3}").prop_map(|(actor, reason)| Correction::new(&actor, &reason).unwrap())
}

fn change(amount: &BoxedStrategy<i64>) -> impl Strategy<Value = Change> + use<> {
    let set = (amount.clone(), condition(), expiry(), why());
    let expire = (option::weighted(0.8, deadline()), expiry_condition());
    prop_oneof![
        12 => amount.clone().prop_map(Change::Add),
        3 => set.prop_map(|(value, when, expiry, why)| Change::Set { value, when, expiry, why }),
        1 => why().prop_map(Change::Reset),
        1 => (amount.clone(), why()).prop_map(|(delta, why)| Change::Adjust { delta, why }),
        2 => why().prop_map(Change::Delete),
        2 => sum().prop_map(Change::Sum),
        2 => expire.prop_map(|(at, when)| Change::Expire { at, when }),
        2 => prop::sample::select(vec![Field::Value, Field::Expiry]).prop_map(Change::Read),
    ]
}

fn sum() -> impl Strategy<Value = ShardReports> {
    let report = (0u32..4, 0u64..4, 0u64..300, 0u64..300, prop::bool::weighted(0.1));
    prop::collection::vec(report, 0..4).prop_map(|reports| {
        let by_shard: std::collections::BTreeMap<u32, SubCounter> = reports
            .into_iter()
            .map(|(shard, incarnation, increments, decrements, is_closed)| {
                (shard, SubCounter { shard, incarnation, increments, decrements, is_closed })
            })
            .collect();
        ShardReports::new(by_shard.into_values().collect()).unwrap()
    })
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        2 => Just(Condition::Always),
        2 => (-2i64..6).prop_map(Condition::Equals),
        1 => Just(Condition::Absent),
        1 => Just(Condition::Present),
    ]
}

fn expiry() -> impl Strategy<Value = Expiry> {
    prop_oneof![2 => Just(Expiry::Keep), 1 => Just(Expiry::Never), 2 => deadline().prop_map(Expiry::At)]
}

fn expiry_condition() -> impl Strategy<Value = ExpiryCondition> {
    prop::sample::select(vec![
        ExpiryCondition::Always,
        ExpiryCondition::IfNone,
        ExpiryCondition::IfSome,
        ExpiryCondition::IfLater,
        ExpiryCondition::IfEarlier,
        ExpiryCondition::IfSomeAndEarlier,
    ])
}

/// Deadlines: around the start of the test, later, and far in the future.
fn deadline() -> impl Strategy<Value = Deadline> {
    let at =
        prop_oneof![1 => Just(1), 6 => START_MS..START_MS + 40, 3 => START_MS..START_MS + 400_000, 1 => any::<u64>()];
    let after = prop_oneof![1 => Just(0), 6 => 0u64..40, 3 => 0u64..400_000, 1 => any::<u64>()];
    prop_oneof![at.prop_map(|at| Deadline::At(Millis(at))), after.prop_map(Deadline::After)]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let on_bound =
        prop::sample::select(vec![OnBound::Refuse, OnBound::Saturate, OnBound::RefuseOutside, OnBound::Clamp]);
    let parts = (option::of(-10i64..5), option::of(0i64..20), on_bound);
    parts.prop_map(|(floor, ceiling, on_bound)| Bounds { floor, ceiling, on_bound })
}

fn dimensions_of(pairs: &[(String, String)]) -> Dimensions {
    let mut dimensions = Dimensions::default();
    pairs.iter().for_each(|(name, value)| dimensions.push(name, value).unwrap());
    dimensions
}

/// Random details.
pub fn details() -> impl Strategy<Value = Details> {
    let dimension = ("[a-z]{1,4}", "[a-zü]{0,6}");
    let parts =
        (option::of(vec(any::<u8>(), 0..20)), vec(dimension, 0..4), option::of(any::<u64>()), option::of(bounds()));
    let expiry = option::of(
        (option::of(deadline()), any::<bool>()).prop_map(|(at, only_if_none)| AddExpiry { at, only_if_none }),
    );
    (parts, expiry).prop_map(|((member, dimensions, at, bounds), expiry)| Details {
        member: member.map(|member| Member::new(&member).unwrap()),
        dimensions: dimensions_of(&dimensions),
        at: at.map(Millis),
        bounds,
        expiry,
    })
}

/// Any event whose amounts come from `amount`.
pub fn event(amount: &BoxedStrategy<i64>) -> impl Strategy<Value = Event> + use<> {
    event_of(keys(), amount)
}

/// Any event with one of these keys.
pub fn event_of(keys: Vec<Key>, amount: &BoxedStrategy<i64>) -> impl Strategy<Value = Event> + use<> {
    let id = prop_oneof![4 => Just(None), 1 => (0u8..8).prop_map(|id| Some(vec![b'i', id]))];
    let carried = prop_oneof![5 => Just(None), 1 => details().prop_map(Some)];
    let key = prop::sample::select(keys);
    let grouped = prop::bool::weighted(0.2);
    (key, change(amount), id, carried, grouped).prop_map(|(key, change, id, details, grouped)| Event {
        key,
        change,
        id,
        details,
        grouped,
    })
}
