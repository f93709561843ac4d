//! Bounds: floors and ceilings that one change may not cross.

use std::thread;

use tally_core::event::{Bounds, OnBound};
use tally_core::outcome::Refusal;

use crate::{Failure, Host, Running, Verdict};

fn refusing(floor: Option<i64>, ceiling: Option<i64>) -> Bounds {
    Bounds { floor, ceiling, on_bound: OnBound::Refuse }
}

fn saturating(floor: Option<i64>, ceiling: Option<i64>) -> Bounds {
    Bounds { floor, ceiling, on_bound: OnBound::Saturate }
}

/// The outcome has the current value. A change that reaches the bound exactly is applied.
pub fn a_change_that_would_cross_a_bound_is_refused<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let within = refusing(Some(0), Some(10));
    let steps = [(4, 4, None), (7, 4, BOUND), (6, 10, None), (1, 10, BOUND), (-11, 10, BOUND), (-10, 0, None)];
    for (delta, value, refusal) in steps {
        let outcome = running.call().add_within("stock", delta, within).one()?;
        assert_eq!((outcome.value, outcome.refusal), (value, refusal), "{delta}");
        assert_eq!(outcome.applied, if refusal.is_some() { 0 } else { delta });
    }
    let outcome = running.call().add_within("never", -1, within).one()?;
    assert_eq!((outcome.exists, outcome.refusal), (false, BOUND));
    assert!(!running.read("never")?.exists);
    // Bounds belong to the event, not to the counter.
    assert_eq!(running.add("stock", -3)?.value, -3);
    Ok(())
}

const BOUND: Option<Refusal> = Some(Refusal::Bound);

/// The outcome says how much was applied.
pub fn a_saturating_bound_applies_the_part_that_fits<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let within = saturating(Some(-5), Some(10));
    for (delta, value, applied) in [(25, 10, 10), (1, 10, 0), (-4, 6, -4), (-100, -5, -11), (i64::MAX, 10, 15)] {
        let outcome = running.call().add_within("n", delta, within).one()?;
        assert_eq!((outcome.value, outcome.applied, outcome.refusal), (value, applied, None), "{delta}");
    }
    // The 64-bit range is also a bound.
    running.call().set("n", i64::MAX - 1).send()?;
    let outcome = running.call().add_within("n", 5, saturating(Some(0), None)).one()?;
    assert_eq!((outcome.value, outcome.applied), (i64::MAX, 1));
    Ok(())
}

/// It may not move further away.
pub fn a_value_out_of_bounds_may_move_back<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", 100).send()?;
    let outcome = running.call().add_within("n", -10, refusing(None, Some(10))).one()?;
    assert_eq!((outcome.value, outcome.refusal), (90, None));
    let outcome = running.call().add_within("n", 1, refusing(None, Some(10))).one()?;
    assert_eq!((outcome.value, outcome.refusal), (90, BOUND));
    let outcome = running.call().add_within("n", 1, saturating(None, Some(10))).one()?;
    assert_eq!((outcome.value, outcome.applied, outcome.refusal), (90, 0, None));
    Ok(())
}

/// Many callers take from a stock that is too small for all: exactly the stock is handed out.
pub fn concurrent_reservations_never_oversell<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("stock", 100).send()?;
    let taken: Result<Vec<i64>, Failure> = thread::scope(|scope| {
        let caller = || {
            let mut taken = 0;
            for _ in 0..25 {
                taken -= running.call().add_within("stock", -1, refusing(Some(0), None)).one()?.applied;
            }
            Ok(taken)
        };
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(caller)).collect();
        callers.into_iter().map(|caller| caller.join().map_err(|_| "a caller panicked")?).collect()
    });
    assert_eq!(taken?.iter().sum::<i64>(), 100);
    assert_eq!(running.value("stock")?, 0);
    Ok(())
}
