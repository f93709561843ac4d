//! Where the contract suite finds its engines.

mod as_shipped;
mod cramped;

pub use as_shipped::{AsShipped, FlushingHere};
pub use cramped::Cramped;
