//! ubscore

pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod entropy;
pub mod http;
pub mod telemetry;
