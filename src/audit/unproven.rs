//! Why a finding or a transfer is left to the operator: neither store proves how it has ended.

/// The reason, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// A finding about no transfer.
    #[error("the log does not prove it")]
    NoTransfer,
    /// The records of the transfer were trimmed or cut off.
    #[error("the log has no record of it any more")]
    NoRecord,
    /// The sum of the account is wrong as well.
    #[error("the balance of its account does not add up")]
    Unbalanced,
    /// PostgreSQL has an unreadable row.
    #[error("a row of it cannot be read")]
    UnreadableRow,
    /// The log has an unreadable record.
    #[error("its record cannot be read")]
    UnreadableRecord,
    /// PostgreSQL has added the transfer to its totals.
    #[error("it is below the watermark of PostgreSQL, which keeps only totals there")]
    BelowPostgres,
    /// UBSCore may have forgotten the transfer.
    #[error("it is below the watermark of UBSCore, which decides nothing there")]
    BelowUbscore,
    /// The intents differ.
    #[error("PostgreSQL has it with another user, asset, amount, direction or cid")]
    OtherIntent,
    /// The final states differ.
    #[error("the two stores have different final states of it")]
    OtherEnd,
    /// The decisions of Funding differ.
    #[error("Funding has another decision")]
    OtherFunding,
    /// The decisions of UBSCore differ.
    #[error("UBSCore has another decision")]
    OtherSpot,
    /// Funding has too many operations.
    #[error("Funding has an operation that does not belong to it")]
    Surplus,
    /// The records do not decide the transfer.
    #[error("the log has no decision of UBSCore about it")]
    Undecided,
    /// A refusal without its code.
    #[error("PostgreSQL has no code for its refusal")]
    NoCode,
    /// State and operations of PostgreSQL do not fit.
    #[error("PostgreSQL contradicts itself about it, and so proves nothing")]
    Contradiction,
    /// The order number belongs to another external operation.
    #[error("PostgreSQL has another operation under its order number")]
    OtherExternal,
    /// The idem_key was decided again.
    #[error("PostgreSQL has another decision for its idem_key")]
    OtherIdemKey,
    /// The records of a transaction and its row do not belong together.
    #[error(
        "PostgreSQL has it with another body, or the log an operation that no service asks for"
    )]
    OtherTransaction,
    /// PostgreSQL has decided a transaction the other way.
    #[error("PostgreSQL has decided it the other way, or tells of a branch otherwise")]
    OtherVerdict,
    /// Totals below the watermark differ after all repairs.
    #[error("no repeated decision explains it")]
    Unexplained,
    /// UBSCore has the operation already.
    #[error("UBSCore has decided it already")]
    Decided,
    /// UBSCore rejects the operation as a violation of the protocol.
    #[error("{0}")]
    Violation(&'static str),
    /// A table of UBSCore is full.
    #[error("UBSCore has no place for it")]
    Full,
    /// UBSCore may have forgotten the operation.
    #[error("UBSCore may have forgotten it")]
    Forgotten,
    /// A refusal that cannot be had again.
    #[error("it was refused, and would succeed now")]
    WouldSucceed,
    /// The money has been spent.
    #[error("insufficient Spot balance: UBSCore would refuse it now")]
    Insufficient,
    /// The account is frozen or disabled.
    #[error("the status of the Spot account does not allow it: UBSCore would refuse it now")]
    Status,
    /// Any other refusal.
    #[error("UBSCore would refuse it now")]
    Refused,
    /// Another step of the same balance is refused.
    #[error("another operation on the same balance cannot be decided again")]
    SameBalance,
}
