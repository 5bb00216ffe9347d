//! The audit: it watches the money from outside the path of a transfer, and halts the service when
//! the money does not add up.
//!
//! Files: [`fit`] (whether the state of a transfer fits the operations of both journals; pure),
//! [`mismatch`] (a finding, its kind and its text), [`error`] (why a round could not be finished),
//! [`unproven`] (why a finding is left to the operator), [`conservation`] (the rounds of the audit:
//! new rows and records, and a part of the old ones), [`rounds`] (when a round runs, and its
//! consequences), [`settled`] (totals below the watermark), [`externals`] (external operations
//! against their records), [`transactions`] (postings by name against the rows of transactions),
//! [`transaction_repair`] (transactions that PostgreSQL has lost), [`failover`] (PostgreSQL is
//! another server, or has gone back),
//! [`verify`] (the rounds on a log that is only read), [`repair`] (transfers that PostgreSQL has
//! lost and the log proves), [`redecision`] (decisions that a cut of the log has lost and
//! PostgreSQL proves), [`lost_venues`] (venues that must send again after a cut), [`rebuild`] (a
//! lost log from PostgreSQL alone), [`halt`] (the flag that
//! stops the service until an operator resumes), [`frequency`] (users with an abnormal number of
//! transfers), [`legs`] (the legs of the log added up, a second judge of postings), [`statement`]
//! (the account statement of one user), [`totals`] (the sums of each
//! asset, exact at every read).

pub mod conservation;
pub mod error;
pub mod externals;
pub mod failover;
pub mod fit;
pub mod frequency;
pub mod halt;
pub mod legs;
pub mod lost_venues;
pub mod mismatch;
mod outside_repair;
pub mod rebuild;
pub mod redecision;
pub mod repair;
pub mod rounds;
pub mod settled;
pub mod statement;
pub mod totals;
pub mod transaction_repair;
pub mod transactions;
pub mod unproven;
pub mod verify;
