//! How long changes have been waiting to be published or persisted.

use parking_lot::Mutex;
use tally_core::time::Millis;

/// The time of the oldest change that is applied and not saved elsewhere.
#[derive(Debug, Default)]
pub struct LagClock {
    oldest: Mutex<Oldest>,
}

#[derive(Debug, Default)]
struct Oldest {
    /// Time of the oldest change that the save in progress does not include.
    waiting: Option<Millis>,
    /// Time of the oldest change that it includes.
    saving: Option<Millis>,
}

impl LagClock {
    /// A change of this time was applied.
    pub fn applied(&self, at: Millis) {
        self.oldest.lock().waiting.get_or_insert(at);
    }

    /// Everything applied so far is being saved.
    pub fn begin(&self) {
        let mut oldest = self.oldest.lock();
        oldest.saving = oldest.saving.or(oldest.waiting);
        oldest.waiting = None;
    }

    /// The save has succeeded.
    pub fn saved(&self) {
        self.oldest.lock().saving = None;
    }

    /// The save has failed, and its changes wait for the next attempt.
    pub fn failed(&self) {
        let mut oldest = self.oldest.lock();
        oldest.waiting = oldest.saving.take().or(oldest.waiting);
    }

    /// How long the oldest change has been waiting, in milliseconds; 0 if none is.
    pub fn age_ms(&self, now: Millis) -> u64 {
        let oldest = self.oldest.lock();
        oldest.saving.or(oldest.waiting).map_or(0, |oldest| now.since(oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_that_of_the_oldest_change_that_is_not_saved() {
        let lag = LagClock::default();
        assert_eq!(lag.age_ms(Millis(100)), 0);
        lag.applied(Millis(10));
        lag.applied(Millis(20));
        assert_eq!(lag.age_ms(Millis(100)), 90);
        lag.begin();
        lag.applied(Millis(30));
        assert_eq!(lag.age_ms(Millis(100)), 90, "it is not saved yet");
        lag.saved();
        assert_eq!(lag.age_ms(Millis(100)), 70);
        lag.begin();
        lag.applied(Millis(40));
        lag.failed();
        assert_eq!(lag.age_ms(Millis(100)), 70);
    }
}
