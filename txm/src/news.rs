//! The news of the store: the signers for which another process has stored work.

use std::collections::BTreeSet;

use alloy_primitives::Address;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The signers with news, from the store's listener to the node's look for arrivals. A store
/// without a listener keeps it as it is by default: not live, so that the node looks often.
#[derive(Debug, Default)]
pub struct News {
    state: Mutex<State>,
    bell: Notify,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_live: bool,
    signers: BTreeSet<Address>,
    /// News may have been lost: any signer may have some.
    is_of_all: bool,
}

impl News {
    /// Notes that a signer has news.
    pub fn tell(&self, signer: Address) {
        self.state.lock().signers.insert(signer);
        self.bell.notify_one();
    }

    /// Notes that a process has given a signer back.
    pub fn tell_freed(&self) {
        self.freed.notify_one();
    }

    /// Waits until a signer is given back. One waiter at a time.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Notes whether news arrive now. When they begin to arrive, earlier ones may be lost.
    pub fn set_live(&self, is_live: bool) {
        let mut state = self.state.lock();
        state.is_of_all |= is_live && !state.is_live;
        state.is_live = is_live;
        drop(state);
        self.bell.notify_one();
    }

    /// Whether news arrive now. If not, only a look finds work.
    pub fn is_live(&self) -> bool {
        self.state.lock().is_live
    }

    /// Waits for news, or for a change of [`News::is_live`]. One waiter at a time.
    pub async fn changed(&self) {
        self.bell.notified().await;
    }

    /// Takes the news: whether one of these signers has some. News of others are dropped.
    pub fn take(&self, signers: impl IntoIterator<Item = Address>) -> bool {
        let mut state = self.state.lock();
        let told = std::mem::take(&mut state.signers);
        let is_of_all = std::mem::take(&mut state.is_of_all);
        is_of_all || signers.into_iter().any(|signer| told.contains(&signer))
    }
}
