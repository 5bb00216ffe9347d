//! Models of the parts outside of a node, for the simulation: strict, and the same each time.

pub mod chain;
pub mod store;
