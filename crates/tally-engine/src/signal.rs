//! Small signals between the engine's threads and its callers.

use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Takes a lock whose holder cannot leave half-made state behind, or whose state is discarded when it does.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something happened: set by one thread, awaited by another. Setting it twice is setting it once.
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

    /// Whether it is set and nobody has waited for it since.
    #[cfg(test)]
    pub(crate) fn is_set(&self) -> bool {
        *lock(&self.set)
    }

    /// Waits until set, and unsets it.
    pub(crate) fn wait(&self) {
        let set = lock(&self.set);
        let mut set = self.changed.wait_while(set, |set| !*set).unwrap_or_else(PoisonError::into_inner);
        *set = false;
    }

    /// Waits until set or until `limit` has passed, and unsets it.
    pub(crate) fn wait_up_to(&self, limit: Duration) {
        let set = lock(&self.set);
        let waited = self.changed.wait_timeout_while(set, limit, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// The poison: once an engine has failed to flush, it says why for ever after.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
    waiting: Mutex<Vec<Waker>>,
}

impl Poison {
    /// Poisons; the first reason stays.
    pub(crate) fn set(&self, reason: String) {
        // Losing the race means that somebody else has said why.
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
