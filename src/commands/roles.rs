//! The long-running roles of the program.
//!
//! A role begins with [`process`]: configuration, telemetry, alerts, supervision, the health
//! listener and signals. [`primary`] adds the engine, the coordinator and the public listener.

pub mod primary;
pub mod process;
mod recharge_gauges;
pub(super) mod recharges;
pub mod signals;
mod transactions;
mod upkeep;
mod venues;
