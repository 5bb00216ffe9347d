//! Why a request is refused as OVERLOADED: the thing that has no room. One table of names and
//! messages.

use std::fmt;

/// A thing that has no room for one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shortage {
    /// UBSCore's ring of orders.
    Ring,
    /// The queue of a coordinator's worker, or the transfers that it has under way.
    Worker,
    /// Transfers that PostgreSQL blocks, or that are open for long, see `coordinator.parked_max`.
    /// Or calls behind a blocked one of the same user, see `coordinator.parked_calls_max`.
    Parked,
    /// UBSCore's outcome map, see `engine.outcomes_max`.
    Outcomes,
    /// The log: no room for the records that a new transfer may need.
    LogSpace,
    /// Funding's journal in PostgreSQL, see `journal.bytes_max`.
    Journal,
    /// UBSCore's accounts, see `engine.accounts_max`.
    Accounts,
    /// UBSCore's balances, of which there are two an account.
    Balances,
    /// The table of users with counted limits.
    Limits,
    /// Streams of events.
    Streams,
    /// Connections of a listener.
    Connections,
}

impl Shortage {
    /// Every reason.
    pub const ALL: [Shortage; 11] = [
        Shortage::Ring,
        Shortage::Worker,
        Shortage::Parked,
        Shortage::Outcomes,
        Shortage::LogSpace,
        Shortage::Journal,
        Shortage::Accounts,
        Shortage::Balances,
        Shortage::Limits,
        Shortage::Streams,
        Shortage::Connections,
    ];

    /// Its name on the wire, in metrics and in `/readyz`.
    pub fn name(self) -> &'static str {
        match self {
            Shortage::Ring => "ring",
            Shortage::Worker => "worker",
            Shortage::Parked => "parked",
            Shortage::Outcomes => "outcomes",
            Shortage::LogSpace => "log_space",
            Shortage::Journal => "journal",
            Shortage::Accounts => "accounts",
            Shortage::Balances => "balances",
            Shortage::Limits => "limits",
            Shortage::Streams => "streams",
            Shortage::Connections => "connections",
        }
    }

    /// The message for clients and operators.
    pub fn message(self) -> &'static str {
        match self {
            Shortage::Ring => "UBSCore has too many orders at once. Retry shortly.",
            Shortage::Worker => "Too many transfers are under way. Retry shortly.",
            Shortage::Parked => "Earlier transfers wait for PostgreSQL. Retry shortly.",
            Shortage::Outcomes => "No new transfers: the table of outcomes is full. Retry later.",
            Shortage::LogSpace => "No new transfers: the log's disk is full. Retry later.",
            Shortage::Journal => "No new transfers: Funding's journal is full. Retry later.",
            Shortage::Accounts => "No new accounts: the table of accounts is full. Retry later.",
            Shortage::Balances => "No new balances: the table of balances is full. Retry later.",
            Shortage::Limits => "Too many users are counted at once. Retry shortly.",
            Shortage::Streams => "Too many streams of events are open. Retry shortly.",
            Shortage::Connections => "Too many connections are open. Retry shortly.",
        }
    }

    /// Whether the shortage lasts until an operator, or time, makes room. The service is then not
    /// ready.
    pub fn is_lasting(self) -> bool {
        match self {
            Shortage::Outcomes
            | Shortage::LogSpace
            | Shortage::Journal
            | Shortage::Accounts
            | Shortage::Balances => true,
            Shortage::Ring
            | Shortage::Worker
            | Shortage::Parked
            | Shortage::Limits
            | Shortage::Streams
            | Shortage::Connections => false,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// How many transfers have room, those under way included, and the thing that bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The number of transfers.
    pub transfers: usize,
    /// The thing that has no room for one more.
    pub bound_by: Shortage,
}

impl Capacity {
    /// The lesser of two.
    #[must_use]
    pub fn min(self, other: Capacity) -> Capacity {
        if other.transfers < self.transfers { other } else { self }
    }
}

/// Places in UBSCore's tables, transfers under way included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacancy {
    /// Outcomes that the map has room for; a transfer may take two.
    pub outcomes: usize,
    /// Accounts that deposits can make.
    pub accounts: usize,
    /// Balances that deposits can make.
    pub balances: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_capacity_says_what_bounds_it() {
        let capacity = |transfers, bound_by| Capacity { transfers, bound_by };
        let (outcomes, log) = (capacity(7, Shortage::Outcomes), capacity(3, Shortage::LogSpace));
        assert_eq!(outcomes.min(log), log);
        assert_eq!(log.min(outcomes), log);
    }
}
