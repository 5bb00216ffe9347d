//! Findings about a log that is lost.
