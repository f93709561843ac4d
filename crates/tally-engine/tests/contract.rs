//! The contract suite over the embedded engine: as it ships, and cramped so that counters keep leaving memory.

mod hosts;

mod embedded {
    //! With its own threads on a real disk.
    use crate::hosts::AsShipped;

    tally_contract::contract!(AsShipped);
}

mod flushing_here {
    //! With submissions that are flushed by the thread that makes them.
    use crate::hosts::FlushingHere;

    tally_contract::contract!(FlushingHere);
}

mod cramped {
    //! With room in memory for a few counters besides those that fill it, small segments, and a checkpoint or a merge
    //! after every few batches.
    use crate::hosts::Cramped;

    tally_contract::contract!(Cramped);
}
