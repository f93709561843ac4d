//! Where the contract suite finds its engines.

mod as_shipped;
mod cramped;

pub use as_shipped::AsShipped;
pub use cramped::Cramped;
