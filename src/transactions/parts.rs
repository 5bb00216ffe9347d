//! The parts that the worker works with.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use domain::account::UserId;
use domain::asset::AssetId;
use domain::shortage::Shortage;

use super::options::Options;
use crate::clock::Clock;
use crate::coordinator::TransactionNumbers;
use crate::entropy::Entropy;
use crate::gate::Gate;
use crate::transaction::TransactionRow;

/// See the module.
pub struct TransactionParts<B> {
    /// The parties.
    pub branches: Arc<B>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For the names of transactions.
    pub entropy: Box<dyn Entropy>,
    /// Closed while the service is halted.
    pub gate: Arc<Gate>,
    /// Order numbers, shared with transfers.
    pub numbers: TransactionNumbers,
    /// The thing that UBSCore has no more room for.
    pub shortage: Arc<dyn Fn() -> Option<Shortage> + Send + Sync>,
    /// Whether the balance of a user on Funding is special now.
    pub special: Arc<dyn Fn(UserId, AssetId) -> bool + Send + Sync>,
    /// Gets each transaction that is over, behind that commit. After a commit of unknown end, or if
    /// the process ends first, streams and deliveries read it in PostgreSQL.
    pub told: Arc<dyn Fn(&TransactionRow) + Send + Sync>,
    /// Set when the process may answer nothing more.
    pub silent: Arc<AtomicBool>,
    /// How to work.
    pub options: Options,
}
