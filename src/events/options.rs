//! The options of streams, webhooks and retention, from the configuration.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::asset::Catalog;

use super::retention::Journal;
use super::{Bounds, retention, webhooks};
use crate::config::Config;
use crate::config::secret::Secret;
use crate::postgres::events::UserEvent;
use crate::postgres::{Address, Limits};

impl From<&Config> for Bounds {
    fn from(config: &Config) -> Bounds {
        Bounds {
            // At least half of the connections stay free for requests, which end.
            streams_max: config.events.streams_max.min(config.http.connections_max.div_ceil(2)),
            streams_per_user_max: config.events.streams_per_user_max,
            queue_max: config.events.queue_max,
        }
    }
}

impl retention::Options {
    /// The configured options of an incarnation.
    pub fn new(
        config: &Config,
        (target, limits): (Address, Limits),
        incarnation: u64,
        journal: Arc<Journal>,
    ) -> retention::Options {
        retention::Options {
            target,
            limits,
            incarnation,
            keep: config.events.keep_hours.duration(),
            dead_keep: config.webhooks.dead_keep_hours.duration(),
            journal,
        }
    }
}

impl webhooks::Options {
    /// The configured options of an incarnation's deliveries: to the operator's endpoint if there
    /// is one, and to each follower. `body`: writes an event.
    pub fn all(
        config: &Config,
        (target, limits): (Address, Limits),
        incarnation: u64,
        catalog: &Arc<ArcSwap<Catalog>>,
        body: fn(&UserEvent, &Catalog) -> String,
    ) -> Vec<webhooks::Options> {
        let hooks = &config.webhooks;
        let options = |endpoint: String, url: &Secret, secret: &Secret| webhooks::Options {
            target: target.clone(),
            limits,
            incarnation,
            catalog: Arc::clone(catalog),
            endpoint,
            body,
            url: url.clone(),
            secret: secret.clone(),
            timeout: Duration::from_millis(hooks.timeout_ms),
            parallel: hooks.parallel,
            attempts_max: hooks.attempts_max,
            backoff_base_ms: hooks.backoff_base_ms,
            backoff_cap_ms: hooks.backoff_cap_ms,
        };
        let mut all = Vec::new();
        if let (Some(url), Some(secret)) = (&hooks.url, &hooks.secret) {
            all.push(options(webhooks::ENDPOINT.to_owned(), url, secret));
        }
        for (name, follower) in &config.followers {
            if let (Some(url), Some(secret)) = (&follower.url, &follower.secret) {
                all.push(options(format!("{}{name}", webhooks::FOLLOWER), url, secret));
            }
        }
        all
    }
}
