//! The time of each partition, by the clock of its broker.

use tally_core::time::Millis;

use crate::worker::BrokerClock;

/// One clock for each partition: a broker whose clock is ahead must not make counters of other brokers expire.
pub struct PartitionClocks(Vec<BrokerClock>);

impl PartitionClocks {
    /// Nothing is known yet.
    pub fn new(partitions: u32) -> PartitionClocks {
        PartitionClocks((0..partitions).map(|_| BrokerClock::default()).collect())
    }

    /// The partition has a record of this time.
    pub fn observe(&self, partition: u32, at: Millis) {
        if let Some(clock) = self.0.get(partition as usize) {
            clock.observe(at);
        }
    }

    /// The partition's clock was set back to this time.
    pub fn reset(&self, partition: u32, at: Millis) {
        if let Some(clock) = self.0.get(partition as usize) {
            clock.reset(at);
        }
    }

    /// The time of a partition. While it has no record, the earliest time of the others, so that nothing expires too soon.
    pub fn now(&self, partition: u32) -> Millis {
        let own = self.0.get(partition as usize).and_then(BrokerClock::now);
        own.or_else(|| self.0.iter().filter_map(BrokerClock::now).min()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_ahead_changes_only_the_time_of_its_own_partitions() {
        let clocks = PartitionClocks::new(3);
        assert_eq!(clocks.now(0), Millis(0));
        clocks.observe(0, Millis(1_000_000));
        clocks.observe(1, Millis(9_000_000_000));
        assert!(clocks.now(0) < Millis(2_000_000));
        assert!(clocks.now(1) >= Millis(9_000_000_000));
        assert!(clocks.now(2) < Millis(2_000_000), "it has no record yet");
    }
}
