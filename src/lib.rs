//! ubscore

pub mod clock;
pub mod config;
pub mod entropy;
pub mod http;
pub mod telemetry;
