//! Which ubscore this is.

/// The version, as the manifest has it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit's short hash, with `-dirty` behind it where sources differed from it; `unknown` where the build saw no git
/// and was not told by `UBSCORE_COMMIT`; `development` in debug builds.
pub const COMMIT: &str = env!("UBSCORE_BUILT_FROM");

/// Both, as `ubscore --version` prints them behind the name.
pub const LINE: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("UBSCORE_BUILT_FROM"), ")");

/// Who calls, in the requests that this program makes.
pub const USER_AGENT: &str = concat!("ubscore/", env!("CARGO_PKG_VERSION"));
