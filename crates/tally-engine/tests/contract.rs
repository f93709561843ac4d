//! The contract suite over the embedded engine: as it ships, and with so little memory that counters keep being
//! evicted.

mod hosts;

mod embedded {
    //! With its own threads on a real disk.
    use crate::hosts::AsShipped;

    tally_contract::contract!(AsShipped);
}

mod flushing_here {
    //! With submissions that are flushed on the calling thread.
    use crate::hosts::FlushingHere;

    tally_contract::contract!(FlushingHere);
}

mod cramped {
    //! With room in memory for a few counters besides those that fill it, small segments, and a checkpoint or a merge
    //! after every few batches.
    use crate::hosts::Cramped;

    tally_contract::contract!(Cramped);
}
