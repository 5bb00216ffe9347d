//! ubscore
pub mod account;
pub mod adapters;
pub mod alert;
pub mod amount;
pub mod asset;
pub mod clock;
pub mod code;
pub mod config;
pub mod coordinator;
pub mod crash;
pub mod engine;
pub mod entropy;
pub mod postgres;
pub mod telemetry;
pub mod transfer;
pub mod validation;
