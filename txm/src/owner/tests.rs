//! Owners over the model of the store and the chain in memory, with tokio's paused clock.

mod alerts;
mod commanded;
mod costs;
mod dropped;
mod key;
mod paid;
mod refused;
mod reorganized;
mod shaken;
mod world;
