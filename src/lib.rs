//! ubscore
pub mod account;
pub mod amount;
pub mod asset;
pub mod cli;
pub mod clock;
pub mod code;
pub mod commands;
pub mod config;
pub mod entropy;
pub mod http;
pub mod postgres;
pub mod telemetry;
pub mod transfer;
pub mod validation;
