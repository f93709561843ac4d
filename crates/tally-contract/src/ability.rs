//! What callers can do. An engine can do all of it; a client over a protocol can do what the protocol can express.

use crate::{Host, Verdict};

/// Something that a behaviour needs and that not every caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Restarting the engine within a behaviour.
    Restart,
    /// Stopping the engine while it is used, and knowing which calls it did not accept.
    Stop,
    /// Keys of any bytes, not only of UTF-8.
    AnyBytes,
    /// Keys of any namespace and of the largest length.
    AnyNamespace,
    /// Adding zero, or the most negative number.
    AnyDelta,
    /// Choosing another consistency for one call.
    AnyConsistency,
    /// Compare-and-set, reset and adjustment, with and without request ids.
    Corrections,
    /// Naming the actor of a correction.
    Actors,
    /// Sets that depend on whether the counter exists.
    ConditionalSets,
    /// Setting and removing expiries.
    Expiries,
    /// Floors and ceilings.
    Bounds,
    /// Runs of equal increments with one outcome.
    Runs,
    /// Groups.
    Groups,
    /// Statistics of a counter.
    Statistics,
    /// The ledger of a counter.
    Ledger,
    /// Listings in key order.
    Listing,
    /// Listings that show what was acknowledged just now, while others write.
    FreshListing,
    /// The number of counters, and samples of them.
    Count,
}

/// Runs a behaviour, or says why it is skipped.
pub fn run<H: Host>(host: &H, name: &str, needs: &[Ability], behaviour: fn(&H) -> Verdict) -> Verdict {
    match lacking(host, needs) {
        Some(ability) => {
            println!("{name} is skipped: callers of this engine lack {ability:?}");
            Ok(())
        }
        None => behaviour(host),
    }
}

/// The names of those behaviours that are skipped.
pub fn skipped<H: Host>(host: &H, behaviours: &[(&'static str, &[Ability])]) -> Vec<&'static str> {
    behaviours.iter().filter(|(_, needs)| lacking(host, needs).is_some()).map(|(name, _)| *name).collect()
}

fn lacking<H: Host>(host: &H, needs: &[Ability]) -> Option<Ability> {
    needs.iter().copied().find(|need| host.lacks().contains(need))
}
