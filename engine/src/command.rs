//! Every command that UBSCore takes: one event on the ring.

use domain::account::AccountStatus;
use domain::asset::SYMBOL_BYTES_MAX;
use domain::code::Code;
use domain::transfer::Op;

use crate::external::{External, Outside};
use crate::fact::VENUE_NAME_BYTES_MAX;
use crate::order::Order;
use crate::text::Text;
use crate::totals::Totals;

/// One event on the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Decide an operation.
    Order(Order),
    /// Refuse a WITHDRAW or a DEPOSIT, whether or not its balance and status would allow it.
    ///
    /// An operator ends the wait for it, or it was refused before and its record is lost. A
    /// decision that is recorded already stands.
    Refuse {
        /// The operation.
        order: Order,
        /// The code of the refusal.
        code: Code,
    },
    /// Record an external operation that PostgreSQL has decided. It moves no Spot balance.
    External(External),
    /// Set a Spot account's status. An absent account is created.
    SetStatus {
        /// The account's user.
        user: u64,
        /// The new status.
        status: AccountStatus,
    },
    /// Register an asset.
    RegisterAsset {
        /// Its number.
        asset: u32,
        /// Its decimals.
        precision: u8,
        /// Its symbol.
        symbol: Text<SYMBOL_BYTES_MAX>,
    },
    /// Let outcomes of smaller order numbers be forgotten.
    RaiseWatermark {
        /// The smallest number to be kept.
        order_number: u64,
    },
    /// Start a balance with its totals from before this log began. An absent account is created.
    /// Only for a balance without operations.
    CarryTotals {
        /// The balance's user.
        user: u64,
        /// The balance's asset.
        asset: u32,
        /// Its earlier operations.
        totals: Totals,
    },
    /// Start an asset's external operations with those from before this log began. Only for an
    /// asset without external operations.
    CarryOutside {
        /// The asset's number.
        asset: u32,
        /// All operations below the watermark.
        outside: Outside,
    },
    /// Register a venue.
    AddVenue {
        /// Its number, not 0.
        id: u32,
        /// Its name, not empty.
        name: Text<VENUE_NAME_BYTES_MAX>,
        /// Whether it may POST.
        posts: bool,
    },
    /// Close a venue, or let it open sessions again.
    CloseVenue {
        /// Its number.
        id: u32,
        /// Closed from now on.
        closed: bool,
    },
    /// Open a session of a venue: commands of lower epochs are dropped from now on.
    OpenVenue {
        /// Its number.
        id: u32,
        /// Above the last one; 0 for the next.
        epoch: u64,
        /// The highest number that the venue has an answer for.
        told: u64,
    },
    /// Give a hold of a closed venue back to its owner: an operator's deed. All that remains.
    ReleaseHold {
        /// The name of this release, a ULID, not 0.
        name: u128,
        /// The venue.
        venue: u32,
        /// The hold's number.
        hold: u64,
    },
    /// Record the state's digest.
    Digest,
    /// Read one balance.
    ReadBalance {
        /// The balance's user.
        user: u64,
        /// The balance's asset.
        asset: u32,
    },
    /// Read the decision that an order would get now. Nothing is decided.
    Foresee(Order),
    /// Read a Spot account's status.
    ReadStatus {
        /// The account's user.
        user: u64,
    },
    /// Read the sum of all balances of an asset.
    ReadTotal {
        /// The asset's number.
        asset: u32,
    },
    /// Read the watermark.
    ReadWatermark,
    /// Read the recorded outcome of an operation.
    Query {
        /// The transfer.
        req_id: u128,
        /// The operation.
        op: Op,
    },
    /// Read the recorded outcome of a posting by name.
    QueryNamed {
        /// The transaction.
        transaction: u128,
        /// RESERVE, SETTLE, RELEASE or POST.
        op: Op,
        /// 1..=8; of no meaning for a SETTLE and a RELEASE.
        round: u8,
    },
}

impl Command {
    /// The order to decide; `None` for every other command.
    pub fn order(&self) -> Option<&Order> {
        match self {
            Command::Order(order) | Command::Refuse { order, .. } => Some(order),
            Command::External(_)
            | Command::SetStatus { .. }
            | Command::RegisterAsset { .. }
            | Command::RaiseWatermark { .. }
            | Command::CarryTotals { .. }
            | Command::CarryOutside { .. }
            | Command::AddVenue { .. }
            | Command::CloseVenue { .. }
            | Command::OpenVenue { .. }
            | Command::ReleaseHold { .. }
            | Command::Digest
            | Command::ReadBalance { .. }
            | Command::Foresee(_)
            | Command::ReadStatus { .. }
            | Command::ReadTotal { .. }
            | Command::ReadWatermark
            | Command::Query { .. }
            | Command::QueryNamed { .. } => None,
        }
    }
}
