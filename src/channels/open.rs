//! The channels of this process, by name: the terms of each, and the adapter behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::amount::Amount;

use super::Channel;
use crate::recharge::terms::ChannelTerms;

/// One channel.
pub struct OpenChannel {
    /// The terms that its payments are decided under.
    pub terms: Arc<ChannelTerms>,
    /// The smallest order.
    pub amount_min: Amount,
    /// The largest one.
    pub amount_max: Amount,
    /// The address of its callbacks, as the channel reaches it.
    pub callback_url: String,
    /// The adapter. Its calls block.
    pub channel: Box<dyn Channel>,
    /// Whether it takes no new orders; everything else goes on.
    pub paused: AtomicBool,
}

/// All channels, by name.
#[derive(Default)]
pub struct OpenChannels(BTreeMap<String, Arc<OpenChannel>>);

impl OpenChannel {
    /// Whether it takes no new orders.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }
}

impl OpenChannels {
    /// These channels.
    pub fn new(channels: Vec<OpenChannel>) -> OpenChannels {
        let named = |channel: OpenChannel| (channel.terms.name.clone(), Arc::new(channel));
        OpenChannels(channels.into_iter().map(named).collect())
    }

    /// The channel with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<OpenChannel>> {
        self.0.get(name)
    }

    /// All of them, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<OpenChannel>> {
        self.0.values()
    }
}
