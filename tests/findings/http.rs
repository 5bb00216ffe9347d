//! Findings about requests, readiness and logging.
