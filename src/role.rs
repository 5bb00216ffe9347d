//! The roles of users and services, as tokens and the command line name them.

use std::fmt;

use clap::ValueEnum;
use domain::transfer::{CID_BYTES_MAX, Cid};
use engine::text::Text;

/// The rights of a token beyond its user's own money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Operators' routes, and all users' transfers.
    Admin,
    /// The same, to read. Changes nothing, not even the user's own money.
    Viewer,
    /// Sessions of the venue with this number, and nothing else. Its token has the claim `venue`.
    #[value(skip)]
    Venue(u32),
    /// Transactions of the service with this name, and nothing else. Its token has the name as
    /// `sub`, and no user.
    #[value(skip)]
    Service(Owner),
}

impl Role {
    /// The role in tokens of services.
    pub const SERVICE: &'static str = "service";

    /// The name in tokens.
    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Viewer => "viewer",
            Role::Venue(_) => "venue",
            Role::Service(_) => Role::SERVICE,
        }
    }
}

/// The name of a service, the owner of its transactions: 1 to 64 bytes of `[A-Za-z0-9_.:-]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Owner(Text<CID_BYTES_MAX>);

impl Owner {
    /// The owner with this name, `None` if it is not one.
    pub fn new(name: &str) -> Option<Owner> {
        // The same form as that of a key.
        Cid::new(name)?;
        Text::new(name).map(Owner)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), out)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_short_and_plain() {
        let long = "x".repeat(64);
        for name in ["red-envelope", "1001", "a.b:c_D", &long] {
            assert_eq!(Owner::new(name).map(|owner| owner.to_string()).as_deref(), Some(name));
        }
        for name in ["", "a b", "é", "a/b", &"x".repeat(65)] {
            assert_eq!(Owner::new(name), None, "{name}");
        }
    }
}
