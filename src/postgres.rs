//! Funding's side of the coordinator: PostgreSQL.

pub mod embedded;
