//! The partition against a model: captures, evictions and restarts change neither outcomes nor state, which depend on
//! the batches only.

use crate::harness::Harness;
use crate::strategies;
use proptest::collection::vec;
use proptest::prelude::*;
use tally_core::event::{AddExpiry, Deadline, Details};
use tally_core::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS};
use tally_core::time::Millis;
use tally_sim::model::{Event, Model};

#[derive(Clone, Debug)]
enum Step {
    Batch { pause: u64, events: Vec<Event> },
    BeginCapture,
    Slice(usize),
    Commit,
    Abandon,
    LeaveCapture,
    Evict,
    EvictIds,
    Restart(u64),
    Sweep { pause: u64, max: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![4 => 0u64..5, 2 => 0u64..90_000, 1 => 0..30 * GENERATION_MS];
    let batch = (pause, vec(strategies::event(&strategies::modest()), 1..8));
    prop_oneof![
        12 => batch.prop_map(|(pause, events)| Step::Batch { pause, events }),
        4 => Just(Step::BeginCapture),
        3 => (0usize..4).prop_map(Step::Slice),
        3 => Just(Step::Commit),
        1 => Just(Step::Abandon),
        1 => Just(Step::LeaveCapture),
        4 => Just(Step::Evict),
        1 => Just(Step::EvictIds),
        1 => any::<u64>().prop_map(Step::Restart),
        3 => (0u64..20, 1usize..6).prop_map(|(pause, max)| Step::Sweep { pause, max }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn outcomes_and_state_depend_only_on_the_batches(steps in vec(step(), 1..60)) {
        let keys = strategies::keys();
        let mut model = Model::default();
        let mut harness = Harness::new(1);
        // The same batches without captures, evictions or restarts, and with another hash seed.
        let mut plain = Harness::new(2);
        let mut now = strategies::START_MS + 17;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Batch { pause, events } => {
                    now += pause;
                    let at = Millis(now);
                    let expected = model.apply_all(at, &events);
                    prop_assert_eq!(&harness.apply(at, &events), &expected, "step {}", number);
                    prop_assert_eq!(&plain.apply(at, &events), &expected, "step {}", number);
                }
                Step::BeginCapture => harness.begin_capture(&model),
                Step::Slice(max) => harness.capture_slice(max),
                Step::Commit => harness.commit().map_err(TestCaseError::fail)?,
                Step::Abandon => harness.abandon(),
                Step::LeaveCapture => harness.leave_capture(),
                Step::Evict => harness.evict(),
                Step::EvictIds => harness.evict_ids(),
                Step::Restart(seed) => harness.restart(seed),
                Step::Sweep { pause, max } => {
                    now += pause;
                    let sweeps = harness.sweep(Millis(now), max);
                    model.apply_all(Millis(now), &sweeps);
                    plain.apply(Millis(now), &sweeps);
                }
            }
            if let Err(what) = harness.check(&model, &keys) {
                return Err(TestCaseError::fail(format!("after step {number}: {what}")));
            }
        }
        for key in &keys {
            prop_assert_eq!(harness.counter(key, model.clock()), plain.counter(key, model.clock()), "bit for bit");
        }
    }

    #[test]
    fn a_batch_with_an_earlier_time_is_applied_at_the_time_of_its_predecessor(
        moments in vec((0u64..200_000, vec(strategies::event(&strategies::modest()), 1..6)), 1..30),
    ) {
        let (mut model, mut harness) = (Model::default(), Harness::new(1));
        for (at, events) in moments {
            let expected = model.apply_all(Millis(at), &events);
            prop_assert_eq!(harness.apply(Millis(at), &events), expected);
        }
        harness.check(&model, &strategies::keys()).map_err(TestCaseError::fail)?;
    }

    /// A repeat is always a duplicate within the window, and never one generation after it.
    #[test]
    fn a_request_is_remembered_for_the_window_and_forgotten_a_generation_later(
        start in 0..100 * GENERATION_MS,
        pause in IDEMPOTENCY_WINDOW_MS - GENERATION_MS..IDEMPOTENCY_WINDOW_MS + 2 * GENERATION_MS,
        disturbance in 0u8..6,
    ) {
        let event = Event { id: Some(b"id".to_vec()), ..Event::add(&strategies::keys()[0], 5) };
        let repeat = std::slice::from_ref(&event);
        let mut harness = Harness::new(1);
        let mut model = Model::default();
        harness.apply(Millis(start), repeat);
        model.apply(Millis(start), &event);
        // It makes no difference whether the id is resident or stored, or captured before or after it expired.
        if disturbance > 0 {
            harness.begin_capture(&model);
            harness.commit().map_err(TestCaseError::fail)?;
        }
        match disturbance {
            2 => harness.evict_ids(),
            3 => harness.restart(9),
            4 => {
                harness.apply(Millis(start + pause), &[Event::add(&strategies::keys()[1], 1)]);
                harness.begin_capture(&Model::default());
                harness.abandon();
            }
            _ => {}
        }
        let again = harness.apply(Millis(start + pause), repeat)[0];
        if pause <= IDEMPOTENCY_WINDOW_MS {
            prop_assert!(again.is_duplicate() && again.value == 5);
        }
        if pause >= IDEMPOTENCY_WINDOW_MS + GENERATION_MS {
            prop_assert!(!again.is_duplicate() && again.value == 10);
        }
        // Either way, the last request that was not a duplicate counts from here on.
        let third = harness.apply(Millis(start + pause + 1), repeat)[0];
        prop_assert!(third.is_duplicate());
        prop_assert_eq!(third.value, again.value);
    }
}

/// Both expiries have the same record in the store: the sweep of the first must not delete that of the second.
#[test]
fn a_counter_that_was_swept_may_expire_at_the_same_time_again() {
    let (mut model, mut harness) = (Model::default(), Harness::new(1));
    let at = Millis(1_000);
    let details =
        Details { expiry: Some(AddExpiry { at: Some(Deadline::At(at)), only_if_none: false }), ..Details::default() };
    let event = Event { details: Some(details), ..Event::add(&strategies::keys()[0], 5) };
    for now in [Millis(999), Millis(1_001)] {
        model.apply(now, &event);
        assert_eq!(harness.apply(now, std::slice::from_ref(&event))[0].value, 5);
        harness.begin_capture(&model);
        assert_eq!(harness.commit(), Ok(()));
        assert_eq!((harness.partition.counters(), harness.partition.take_expired()), (1, 0));
        harness.sweep(Millis(1_000), 10);
        assert_eq!((harness.partition.counters(), harness.partition.take_expired()), (0, 1));
    }
}
