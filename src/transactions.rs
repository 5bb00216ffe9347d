//! Transactions over both stores and over services: the one worker that moves them, and its handle.
//! HTTP speaks to the handle, and to nothing behind it.
//!
//! [`step`] decides from a row, [`rounds`] finds the words for both stores, [`branches`] are the
//! parties as the worker asks them. The decision is one row in PostgreSQL. Each answer is recorded
//! there before anything depends on it, so a start goes on from the rows alone.

pub mod abandon;
mod apply;
mod ask;
pub mod branches;
mod entry;
#[cfg(test)]
mod example;
mod handle;
#[cfg(test)]
mod model;
mod options;
pub mod parties;
mod parts;
pub mod rounds;
pub mod step;
mod worker;

use tokio::sync::mpsc;

use self::branches::Branches;
pub use self::handle::{
    Abandon, TransactionAnswer, TransactionAsk, TransactionMessage, TransactionRefusal,
    TransactionReply, Transactions,
};
pub use self::options::Options;
pub use self::parts::TransactionParts;
use self::worker::Worker;
use crate::coordinator::worker::backoff::Backoff;
use crate::entropy::Entropy;
use crate::postgres::transactions::TransactionStore;
use crate::task::Tasks;
use crate::telemetry;
use crate::transaction::TransactionState;

/// Starts the worker. It ends when every handle is gone, and then drops its parts. `jitter`: for
/// its back-offs.
pub fn start<S: TransactionStore, B: Branches>(
    parts: TransactionParts<B>,
    store: S,
    jitter: Box<dyn Entropy>,
    inbox: mpsc::Receiver<TransactionMessage>,
    tasks: &mut Tasks,
) {
    for state in TransactionState::ALL.into_iter().filter(|state| state.is_terminal()) {
        telemetry::expect_transactions(state.name());
    }
    let Options { backoff_base_ms, backoff_cap_ms, .. } = parts.options;
    let backoff = Backoff::new(backoff_base_ms, backoff_cap_ms, jitter);
    tasks.run("transactions", Worker::new(parts, store, backoff).run(inbox));
}
