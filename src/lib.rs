//! ubscore
