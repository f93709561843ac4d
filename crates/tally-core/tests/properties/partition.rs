//! The partition against a model written a second time: whatever happens around the batches, captures, evictions,
//! restarts, the outcomes and the state follow from the batches alone.

use crate::beside::Beside;
use crate::drawn;
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
    Evict,
    DropIds,
    Restart(u64),
    Sweep { pause: u64, max: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![4 => 0u64..5, 2 => 0u64..90_000, 1 => 0..30 * GENERATION_MS];
    let batch = (pause, vec(drawn::event(&drawn::modest()), 1..8));
    prop_oneof![
        12 => batch.prop_map(|(pause, events)| Step::Batch { pause, events }),
        4 => Just(Step::BeginCapture),
        3 => (0usize..4).prop_map(Step::Slice),
        3 => Just(Step::Commit),
        1 => Just(Step::Abandon),
        4 => Just(Step::Evict),
        1 => Just(Step::DropIds),
        1 => any::<u64>().prop_map(Step::Restart),
        3 => (0u64..20, 1usize..6).prop_map(|(pause, max)| Step::Sweep { pause, max }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn outcomes_and_state_follow_from_the_batches_alone(steps in vec(step(), 1..60)) {
        let keys = drawn::keys();
        let mut model = Model::default();
        let mut beside = Beside::new(1);
        // The same batches with nothing in between, hashed otherwise.
        let mut plain = Beside::new(2);
        let mut now = drawn::START_MS + 17;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Batch { pause, events } => {
                    now += pause;
                    let at = Millis(now);
                    let expected = model.apply_all(at, &events);
                    prop_assert_eq!(&beside.apply(at, &events), &expected, "step {}", number);
                    prop_assert_eq!(&plain.apply(at, &events), &expected, "step {}", number);
                }
                Step::BeginCapture => beside.begin_capture(&model),
                Step::Slice(max) => beside.capture_slice(max),
                Step::Commit => beside.commit().map_err(TestCaseError::fail)?,
                Step::Abandon => beside.abandon(),
                Step::Evict => beside.evict(),
                Step::DropIds => beside.drop_ids(),
                Step::Restart(seed) => beside.restart(seed),
                Step::Sweep { pause, max } => {
                    now += pause;
                    let sweeps = beside.sweep(Millis(now), max);
                    model.apply_all(Millis(now), &sweeps);
                    plain.apply(Millis(now), &sweeps);
                }
            }
            if let Err(what) = beside.is(&model, &keys) {
                return Err(TestCaseError::fail(format!("after step {number}: {what}")));
            }
        }
        for key in &keys {
            prop_assert_eq!(beside.counter(key, model.clock()), plain.counter(key, model.clock()), "bit for bit");
        }
    }

    #[test]
    fn a_batch_from_an_earlier_time_happens_at_the_time_of_the_one_before(
        moments in vec((0u64..200_000, vec(drawn::event(&drawn::modest()), 1..6)), 1..30),
    ) {
        let (mut model, mut beside) = (Model::default(), Beside::new(1));
        for (at, events) in moments {
            let expected = model.apply_all(Millis(at), &events);
            prop_assert_eq!(beside.apply(Millis(at), &events), expected);
        }
        beside.is(&model, &drawn::keys()).map_err(TestCaseError::fail)?;
    }

    /// A repeat after any pause: within the window it is always recognised, a generation after it never.
    #[test]
    fn a_request_is_remembered_for_the_window_and_forgotten_a_generation_later(
        start in 0..100 * GENERATION_MS,
        pause in IDEMPOTENCY_WINDOW_MS - GENERATION_MS..IDEMPOTENCY_WINDOW_MS + 2 * GENERATION_MS,
        around in 0u8..6,
    ) {
        let event = Event { id: Some(b"id".to_vec()), ..Event::add(&drawn::keys()[0], 5) };
        let repeat = std::slice::from_ref(&event);
        let mut beside = Beside::new(1);
        let mut model = Model::default();
        beside.apply(Millis(start), repeat);
        model.apply(Millis(start), &event);
        // Whether the id is in memory or in the store, captured before or after it expired, makes no difference.
        if around > 0 {
            beside.begin_capture(&model);
            beside.commit().map_err(TestCaseError::fail)?;
        }
        match around {
            2 => beside.drop_ids(),
            3 => beside.restart(9),
            4 => {
                beside.apply(Millis(start + pause), &[Event::add(&drawn::keys()[1], 1)]);
                beside.begin_capture(&Model::default());
                beside.abandon();
            }
            _ => {}
        }
        let again = beside.apply(Millis(start + pause), repeat)[0];
        if pause <= IDEMPOTENCY_WINDOW_MS {
            prop_assert!(again.is_duplicate() && again.value == 5);
        }
        if pause >= IDEMPOTENCY_WINDOW_MS + GENERATION_MS {
            prop_assert!(!again.is_duplicate() && again.value == 10);
        }
        // Forgotten or not, the newest mention is what counts from here on.
        let third = beside.apply(Millis(start + pause + 1), repeat)[0];
        prop_assert!(third.is_duplicate());
        prop_assert_eq!(third.value, again.value);
    }
}

/// The record of the old expiry is to go, the same record of the new one to stay.
#[test]
fn a_counter_that_was_swept_may_expire_at_the_same_moment_again() {
    let (mut model, mut beside) = (Model::default(), Beside::new(1));
    let at = Millis(1_000);
    let details =
        Details { expiry: Some(AddExpiry { at: Some(Deadline::At(at)), only_if_none: false }), ..Details::default() };
    let event = Event { details: Some(details), ..Event::add(&drawn::keys()[0], 5) };
    for now in [Millis(999), Millis(1_001)] {
        model.apply(now, &event);
        assert_eq!(beside.apply(now, std::slice::from_ref(&event))[0].value, 5);
        beside.begin_capture(&model);
        assert_eq!(beside.commit(), Ok(()));
        assert_eq!((beside.partition.counters(), beside.partition.take_expired()), (1, 0));
        beside.sweep(Millis(1_000), 10);
        assert_eq!((beside.partition.counters(), beside.partition.take_expired()), (0, 1));
    }
}
