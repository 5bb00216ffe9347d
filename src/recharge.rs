//! Recharges: money that comes in through a payment channel.

pub mod answers;
pub mod facts;
