//! The roles of users, as tokens and the command line name them.

use clap::ValueEnum;

/// The rights of a user beyond their own money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Operators' routes, and all users' transfers.
    Admin,
    /// The same, to read. Changes nothing, not even the user's own money.
    Viewer,
    /// Sessions of the venue with this number, and nothing else. Its token has the claim `venue`.
    #[value(skip)]
    Venue(u32),
}

impl Role {
    /// The name in tokens.
    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Viewer => "viewer",
            Role::Venue(_) => "venue",
        }
    }
}
