//! A venue in this process: a matching engine that reserves, settles and releases by number.
//!
//! A venue numbers its commands 1, 2, 3, ... for ever, over all its sessions. `VenueSession::push`
//! sends one, `VenueSession::decided` returns its decision before any sync.
//!
//! **Tell nobody outside of this process about a decision above `VenueSession::durable`.** Until
//! then a power cut may take it back.

use std::time::Duration;

use domain::code::Code;
use domain::posting::{Leg, Posting};
use domain::transfer::Op;
use wal::{Identity, Sequence};

use crate::fact::{HoldFact, VENUE_NAME_BYTES_MAX};
use crate::text::Text;

/// A command of a venue. Every body is decided and recorded, a malformed one as refused. A body
/// whose legs cannot be read is sent without legs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Set an amount of a user's available balance apart.
    Reserve {
        /// The venue's own reference. It is kept and not interpreted.
        reference: u64,
        /// The user.
        user: u64,
        /// The asset's number.
        asset: u32,
        /// Smallest units.
        amount: u64,
        /// The hold that grows, by its number; 0 makes a hold with the number of this command.
        onto: u64,
    },
    /// Move money out of the venue's holds.
    Settle {
        /// See [`Command::Reserve`].
        reference: u64,
        /// The legs, in order.
        legs: Posting,
    },
    /// Give a hold back to its owner.
    Release {
        /// See [`Command::Reserve`].
        reference: u64,
        /// The hold's number.
        hold: u64,
        /// Smallest units; [`ALL`](domain::posting::ALL) gives back what remains.
        amount: u64,
    },
    /// Move money between available balances. Only for a venue that may post.
    Post {
        /// See [`Command::Reserve`].
        reference: u64,
        /// The legs, in order.
        legs: Posting,
    },
}

/// The state of a venue right after its Open, which is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The session's epoch. Commands of lower epochs are dropped from now on.
    pub epoch: u64,
    /// The last number decided, 0 for none.
    pub last: u64,
    /// The last number acknowledged, 0 for none.
    pub acknowledged: u64,
    /// The most numbers without an acknowledgement. One more is [`Reason::Window`].
    pub window: u64,
    /// The log's identity. A venue that finds another one must not go on.
    pub log_identity: Identity,
    /// The number up to which all is durable: `last`.
    pub durable: u64,
}

/// How far a halt of the service stops the venues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VenueHalt {
    /// There is no halt.
    #[default]
    Off,
    /// The log was cut, and venues send again. Numbers up to the last answer that the venue had at
    /// its Open are decided, but no refusal that another order of the venues may avert.
    Lost,
    /// No new number is decided.
    On,
}

impl VenueHalt {
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// Of [`VenueHalt::number`].
    pub(crate) fn of_number(number: u8) -> VenueHalt {
        match number {
            0 => VenueHalt::Off,
            1 => VenueHalt::Lost,
            _ => VenueHalt::On,
        }
    }
}

/// The reason why a number was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An earlier number is missing.
    Gap,
    /// Too many answers are not acknowledged.
    Window,
    /// The service is halted.
    Halted,
    /// The log has no room.
    NoRoom,
}

/// The reason why the engine ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A repeat with another body.
    Violation,
    /// A repeat of a number that the venue has acknowledged.
    Forgotten,
}

/// One reply, in the order of the numbers pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A decision, made now or before.
    Answer {
        /// The command's number.
        number: u64,
        /// The code of the refusal; `None` for a success.
        code: Option<Code>,
        /// The failing leg from 0; 0 for a success.
        leg: u8,
        /// The record that holds the decision.
        record: Sequence,
    },
    /// The number was not decided. All commands up to it are dropped: send from it on.
    Back {
        /// The number to go on with.
        number: u64,
        /// The reason.
        reason: Reason,
        /// When to try again, ms; 0 for at once.
        after_ms: u32,
    },
    /// The session has ended: nothing more is decided for it.
    Close {
        /// The number that ended it.
        number: u64,
        /// The reason.
        reason: Ending,
    },
}

/// A command that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// A newer session of the venue is open, or the venue is closed. This one has ended.
    #[error("a newer session of the venue is open, or the venue is closed")]
    Fenced,
    /// The session's part of the ring is full. Take replies first, then push again.
    #[error("the session's part of UBSCore's queue is full")]
    Full,
    /// The engine has stopped.
    #[error("UBSCore has stopped")]
    Stopped,
}

/// A session that is not opened, a venue that is not changed, or a hold that is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The venue is not registered. Next: `ubscore venue add`.
    #[error("no venue has this number")]
    Unknown,
    /// The venue is closed. Next: `ubscore venue open`.
    #[error("the venue is closed")]
    Closed,
    /// The venue is open: only the venue itself may release its holds. Next: `ubscore venue close`.
    #[error("the venue is open")]
    NotClosed,
    /// The venue has no such hold: it has ended, or never was.
    #[error("the venue has no such hold")]
    NoHold,
    /// The epoch is not above the venue's last one.
    #[error("the venue's epoch is {epoch} already")]
    Fenced {
        /// The venue's last epoch.
        epoch: u64,
    },
    /// The epoch is more than 2^32 above the venue's last one.
    #[error("the epoch is more than 2^32 above the venue's, which is {epoch}")]
    TooHigh {
        /// The venue's last epoch.
        epoch: u64,
    },
    /// Epoch 0 was asked for, and another session is open.
    #[error("another session of the venue is open")]
    Busy,
    /// The venue knows answers that the log does not hold. The caller must raise an alert and halt.
    #[error("the venue has answers up to number {}, and the log ends with {last}", .told)]
    AheadOfLog {
        /// The highest number answered to the venue.
        told: u64,
        /// The last number in the log.
        last: u64,
    },
    /// After a cut of the log, PostgreSQL has not recorded the answers that the venue has. The
    /// epoch is taken: open again with a higher one.
    #[error("PostgreSQL has not recorded the answers of the venue")]
    Unnoted,
    /// `engine.venues_max` venues are registered, or the log has no room, or UBSCore's queue is
    /// full.
    #[error("no room: {0}")]
    NoRoom(&'static str),
    /// The venue is registered with another name.
    #[error("the number is another venue's, or the name is not 1 to 32 bytes")]
    Conflict,
    /// The engine has stopped. The command may be recorded or not: send it again after the next
    /// start.
    #[error("UBSCore has stopped")]
    Stopped,
}

/// An acknowledgement that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// The number was not answered yet: a violation.
    #[error("number {0} was not answered")]
    NotAnswered(u64),
    /// See [`PushError::Fenced`].
    #[error("a newer session of the venue is open, or the venue is closed")]
    Fenced,
}

/// A hold of a venue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// The number of the command that made it.
    pub number: u64,
    /// The owner.
    pub user: u64,
    /// The asset's number.
    pub asset: u32,
    /// Smallest units.
    pub remaining: u64,
    /// The reference of the command that made it.
    pub reference: u64,
    /// The record that made it.
    pub record: Sequence,
    /// The time of that record, ns since the Unix epoch.
    pub time_ns: u64,
}

/// A venue, as operators read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VenueRow {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: Text<VENUE_NAME_BYTES_MAX>,
    /// It may POST.
    pub posts: bool,
    /// An operator has closed it.
    pub closed: bool,
    /// The epoch of its last session, 0 for none.
    pub epoch: u64,
    /// The last number decided, 0 for none.
    pub last: u64,
    /// The last number acknowledged, 0 for none.
    pub acknowledged: u64,
    /// Its oldest hold: the number, and when it was made, ns since the Unix epoch.
    pub oldest: Option<(u64, u64)>,
}

/// A read for operators: rows of a table, some at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// All venues.
    Venues,
    /// Holds and freezes, see [`Ledger::holds_below`](crate::ledger::Ledger::holds_below).
    Holds {
        /// Positions below this one; `usize::MAX` for the first read.
        before: usize,
    },
    /// One hold of a venue, if it is there.
    Hold {
        /// The venue.
        venue: u32,
        /// The hold's number.
        number: u64,
    },
    /// The open holds of a transaction.
    Transaction {
        /// The transaction.
        transaction: u128,
    },
    /// One balance, and its first holds and freezes, oldest first.
    Balance {
        /// The balance's user.
        user: u64,
        /// The balance's asset.
        asset: u32,
    },
}

/// The rows of one [`Look`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The venues.
    pub venues: Vec<VenueRow>,
    /// Holds and freezes.
    pub holds: Vec<HoldFact>,
    /// Ask with this position for the next ones; `None` at the end.
    pub next: Option<usize>,
    /// Available and held, smallest units: the sums that are carried along.
    pub balance: (u128, u128),
    /// The balance has more holds and freezes than these.
    pub more: bool,
    /// The last record that they include.
    pub position: Sequence,
}

/// A SETTLE or RELEASE of a venue that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedEnd {
    /// The venue.
    pub venue: u32,
    /// The command's number.
    pub number: u64,
    /// SETTLE or RELEASE.
    pub op: Op,
    /// The code.
    pub code: Code,
    /// The failing leg from 0.
    pub leg: u8,
}

/// The times of one command of a venue on the core thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// From its time, see `VenueSession::at`, until the core thread takes it off the ring.
    pub wait: Duration,
    /// The decision: with the copy of its record into the log, without the sync.
    pub decide: Duration,
}

/// Some holds of a venue, in number order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holds {
    /// The last record that they include.
    pub position: Sequence,
    /// At most 256.
    pub holds: Vec<HoldRow>,
    /// Ask with this number for the next ones; `None` at the end.
    pub next: Option<u64>,
}

/// A balance at a point of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceRow {
    /// Smallest units; `None` without a Spot account.
    pub available: Option<u128>,
    /// All holds and freezes, smallest units.
    pub held: u128,
    /// The last record that it includes.
    pub position: Sequence,
}

/// The legs of a trade: a shorthand for tests and examples.
pub fn legs(legs: impl IntoIterator<Item = Leg>) -> Posting {
    legs.into_iter().take(domain::posting::LEGS_MAX).collect()
}
