//! Findings about the connection to PostgreSQL: timeline, TLS, take-over, the embedded server.
