//! What watches over the money from outside its path, and stops the service before it is wrong.
//!
//! Rooms: [`fit`] (whether a transfer's state fits what both journals hold, pure), [`conservation`] (the rounds of the
//! audit: what is new in both stores, and a part of what is old), [`rounds`] (when they are run, and what follows),
//! [`settled`] (what lies below the watermark), [`externals`] (operations with the outside against their records),
//! [`failover`] (PostgreSQL has become another server, or has gone back), [`verify`] (the rounds on a log that is only
//! read), [`repair`] (what the log proves of transfers that PostgreSQL has lost), [`redecision`] (what PostgreSQL proves of
//! decisions that a cut of the log has lost), [`rebuild`] (a lost log from PostgreSQL alone), [`halt`] (the flag that stops
//! the service until an operator resumes), [`frequency`] (users who transfer more often than anybody should), [`statement`]
//! (one user's account statement), [`totals`] (what there is of each asset, exact at every read).

pub mod conservation;
pub mod externals;
pub mod failover;
pub mod fit;
pub mod frequency;
pub mod halt;
pub mod rebuild;
pub mod redecision;
pub mod repair;
pub mod rounds;
pub mod settled;
pub mod statement;
pub mod totals;
pub mod verify;
