//! Whether a history of one counter is linearizable: the search of Wing and Gong (1993) with the cache of Lowe (2017).
//!
//! Operations take effect at one moment between call and return. The search tries the operations that may be next, in
//! the order of their calls, and backtracks when none fits. Each pair of completed operations and value is tried only
//! once.

use std::collections::HashSet;

/// What an operation request for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Add(i64),
    /// Subtracts, unless the value would be below zero.
    Take(i64),
    Set(i64),
    Read,
}

/// What it response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// This is the value after it.
    Value(i64),
    /// The bound refused it; this is the value.
    Refused(i64),
    /// Unknown: it may take effect at any time after its call, or never.
    Unknown,
}

/// One operation. Times are on one clock, by which the order of different operations is decided.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub request: Request,
    pub response: Response,
    pub called_at: u64,
    pub returned_at: u64,
}

impl Operation {
    /// The value after the operation, if `value` before it explains the answer.
    fn apply(&self, value: i64) -> Option<i64> {
        let (after, is_refused) = match self.request {
            Request::Add(amount) => (value + amount, false),
            Request::Take(amount) if value < amount => (value, true),
            Request::Take(amount) => (value - amount, false),
            Request::Set(new) => (new, false),
            Request::Read => (value, false),
        };
        let fits = match self.response {
            Response::Value(seen) => !is_refused && seen == after,
            Response::Refused(seen) => is_refused && seen == after,
            Response::Unknown => true,
        };
        fits.then_some(after)
    }

    fn returned_at(&self) -> u64 {
        if self.response == Response::Unknown { u64::MAX } else { self.returned_at }
    }
}

/// A step of the search: an operation that was done, and the value before it.
struct Step {
    operation: usize,
    value: i64,
}

/// Checks a history that begins with the value zero. An error describes the longest prefix that could be explained.
pub fn check(history: &[Operation]) -> Result<(), String> {
    let mut operations = history.to_vec();
    operations.sort_by_key(|operation| operation.called_at);
    let required = operations.iter().filter(|operation| operation.response != Response::Unknown).count();
    let mut done = vec![false; operations.len()];
    let (mut value, mut required_done, mut first) = (0, 0, 0);
    let mut steps: Vec<Step> = Vec::new();
    let mut tried: HashSet<(Vec<bool>, i64)> = HashSet::new();
    let mut furthest = (0, String::new());
    loop {
        if required_done == required {
            return Ok(());
        }
        // An operation that was called after another one returned cannot come before it.
        let pending = || (0..operations.len()).filter(|at| !done[*at]);
        let deadline = pending().map(|at| operations[at].returned_at()).min().unwrap_or(u64::MAX);
        let next = pending().skip_while(|at| *at < first).find_map(|at| {
            let operation = &operations[at];
            let after = (operation.called_at <= deadline).then(|| operation.apply(value)).flatten()?;
            let mut with = done.clone();
            with[at] = true;
            tried.insert((with, after)).then_some((at, after))
        });
        match next {
            Some((at, after)) => {
                steps.push(Step { operation: at, value });
                done[at] = true;
                required_done += usize::from(operations[at].response != Response::Unknown);
                (value, first) = (after, 0);
            }
            None => {
                if required_done >= furthest.0 {
                    let candidates = pending().filter(|at| operations[*at].called_at <= deadline);
                    let candidates: Vec<_> = candidates.map(|at| operations[at]).collect();
                    furthest =
                        (required_done, format!("value {value}, and none of these can be next: {candidates:#?}"));
                }
                let Some(step) = steps.pop() else {
                    return Err(format!("{} of {required} operations explained: {}", furthest.0, furthest.1));
                };
                done[step.operation] = false;
                required_done -= usize::from(operations[step.operation].response != Response::Unknown);
                (value, first) = (step.value, step.operation + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(request: Request, response: Response, called_at: u64, returned_at: u64) -> Operation {
        Operation { request, response, called_at, returned_at }
    }

    #[test]
    fn concurrent_operations_may_take_effect_in_any_order() {
        let history = [
            operation(Request::Add(1), Response::Value(3), 0, 10),
            operation(Request::Set(2), Response::Value(2), 1, 9),
            operation(Request::Read, Response::Value(0), 2, 3),
            operation(Request::Take(3), Response::Value(0), 11, 12),
            operation(Request::Take(1), Response::Refused(0), 13, 14),
        ];
        assert_eq!(check(&history), Ok(()));
    }

    #[test]
    fn a_lost_update_is_found() {
        let history = [
            operation(Request::Add(1), Response::Value(1), 0, 5),
            operation(Request::Add(1), Response::Value(1), 1, 6),
        ];
        assert!(check(&history).is_err());
    }

    #[test]
    fn a_read_that_misses_what_was_acknowledged_before_it_is_found() {
        let history =
            [operation(Request::Add(1), Response::Value(1), 0, 1), operation(Request::Read, Response::Value(0), 2, 3)];
        assert!(check(&history).unwrap_err().contains("1 of 2 operations"));
        let concurrent = [history[0], Operation { called_at: 1, ..history[1] }];
        assert_eq!(check(&concurrent), Ok(()));
    }

    #[test]
    fn a_value_that_goes_back_is_found() {
        let history = [
            operation(Request::Add(1), Response::Unknown, 0, 1),
            operation(Request::Read, Response::Value(1), 2, 3),
            operation(Request::Read, Response::Value(0), 4, 5),
        ];
        assert!(check(&history).is_err());
    }

    #[test]
    fn an_unknown_outcome_takes_effect_late_or_never_but_once() {
        let unknown = operation(Request::Add(1), Response::Unknown, 0, 1);
        let read = |value, at| operation(Request::Read, Response::Value(value), at, at + 1);
        assert_eq!(check(&[unknown, read(0, 2), read(1, 4)]), Ok(()));
        assert_eq!(check(&[unknown, read(0, 2), read(0, 4)]), Ok(()));
        assert!(check(&[unknown, read(1, 2), read(2, 4)]).is_err());
    }

    #[test]
    fn a_refusal_above_the_bound_is_found() {
        let history = [
            operation(Request::Set(5), Response::Value(5), 0, 1),
            operation(Request::Take(3), Response::Refused(5), 2, 3),
        ];
        assert!(check(&history).is_err());
    }
}
