//! ubscore
pub mod account;
pub mod amount;
pub mod asset;
pub mod code;
pub mod postgres;
pub mod transfer;
pub mod validation;
