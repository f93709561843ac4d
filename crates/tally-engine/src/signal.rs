//! Signals between the engine's threads, and the poison flag.

use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Locks a mutex even if a holder panicked. Only for state that a panic leaves consistent, or that is then discarded.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An auto-reset event: set by one thread, awaited by another. Setting it is idempotent.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn set(&self) {
        let mut set = lock(&self.set);
        if !*set {
            *set = true;
            drop(set);
            self.changed.notify_all();
        }
    }

    /// Whether it is set.
    #[cfg(test)]
    pub(crate) fn is_set(&self) -> bool {
        *lock(&self.set)
    }

    /// Waits until it is set, and resets it.
    pub(crate) fn wait(&self) {
        let set = lock(&self.set);
        let mut set = self.changed.wait_while(set, |set| !*set).unwrap_or_else(PoisonError::into_inner);
        *set = false;
    }

    /// Waits until it is set or `limit` has passed, and resets it.
    pub(crate) fn wait_up_to(&self, limit: Duration) {
        let set = lock(&self.set);
        let waited = self.changed.wait_timeout_while(set, limit, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// Tasks that wait for a recurring event.
#[derive(Debug, Default)]
pub(crate) struct WakerList(Mutex<Vec<Waker>>);

impl WakerList {
    /// Wakes the task at the next [`WakerList::wake_all`]. Register first, then check whether there is anything to wait
    /// for.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut waiting = lock(&self.0);
        waiting.retain(|known| !known.will_wake(waker));
        waiting.push(waker.clone());
    }

    pub(crate) fn wake_all(&self) {
        lock(&self.0).drain(..).for_each(Waker::wake);
    }
}

/// Why the engine stopped acknowledging. Once set, it stays.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
    waiting: Mutex<Vec<Waker>>,
}

impl Poison {
    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: String) {
        // Losing the race means that another thread has set the reason.
        let _ = self.reason.set(reason);
        for waker in lock(&self.waiting).drain(..) {
            waker.wake();
        }
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Resolves once poisoned.
    pub(crate) async fn wait(&self) -> String {
        poll_fn(|context| {
            let mut waiting = lock(&self.waiting);
            match self.reason() {
                Some(reason) => Poll::Ready(reason.to_owned()),
                None => {
                    waiting.retain(|waker| !waker.will_wake(context.waker()));
                    waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}
