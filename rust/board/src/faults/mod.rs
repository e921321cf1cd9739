//! Faults on purpose, for tests: a store that does to requests what networks, servers and crashes do.
//!
//! [`kinds`] are what can happen; [`plan`] decides which request is hit, [`store`] does it. Nothing is random but by the plan's seed, and
//! nothing depends on a clock: "later" is counted in operations.

pub mod kinds;
pub mod plan;
mod store;

pub use kinds::{Fault, Operation};
pub use plan::{Event, FaultPlan, Rule};
pub(crate) use store::FaultyStore;
