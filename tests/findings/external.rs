//! Findings about external operations: each is a record of the log.
