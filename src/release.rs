//! The version and the commit of this program.

/// The version in the manifest.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit's short hash, with `-dirty` if the sources differed from it. `unknown` if the build
/// had neither git nor `UBSCORE_COMMIT`; `development` in debug builds.
pub const COMMIT: &str = env!("UBSCORE_BUILT_FROM");

/// Both, as `ubscore --version` prints them after the name.
pub const LINE: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("UBSCORE_BUILT_FROM"), ")");

/// The user agent in this program's requests.
pub const USER_AGENT: &str = concat!("ubscore/", env!("CARGO_PKG_VERSION"));
