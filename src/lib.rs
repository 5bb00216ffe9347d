//! ubscore
pub mod postgres;
