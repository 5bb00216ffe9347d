//! Findings about assets, development money, files and directories.
