//! Recharges: money that comes in through a payment channel.

pub mod facts;
