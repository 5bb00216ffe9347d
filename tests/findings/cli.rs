//! Findings about the command line and its texts.
