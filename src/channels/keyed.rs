//! A channel of the configuration: its adapter, made anew when the files of its keys change.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::HeaderMap;
use jiff::Timestamp;

use super::stripe::{Stripe, StripeSettings};
use super::wechat::{WeChat, WeChatKey, WeChatSettings};
use super::wire::{BaseUrlError, HttpWire, Wire};
use super::{
    Acknowledgement, BillAsk, CallbackEnd, Channel, ChannelKeyError, ChannelLimits, CreateAsk,
    OrderAsk, RefundAsk, Renewal,
};
use crate::clock::Clock;
use crate::config;
use crate::config::channels::{ChannelKind, ChannelSection};
use crate::config::secret::Secret;
use crate::entropy::SystemEntropy;
use crate::recharge::answers::{
    BillLine, Billed, Closing, Created, Queried, Refunded, Rejected, ReturnedSum,
};
use crate::recharge::facts::Notice;

/// The longest silence of a bill. A channel makes some of them when they are asked for.
const BILL_SILENCE: Duration = Duration::from_secs(300);

/// A channel of the configuration that cannot be used. The text begins with the key.
#[derive(Debug, thiserror::Error)]
pub enum ChannelOpenError {
    /// A key or secret.
    #[error("channels.{0}.{1}")]
    Key(String, ChannelKeyError),
    /// The address.
    #[error("channels.{0}.base_url = {1}: {2}")]
    Address(String, String, BaseUrlError),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] config::Error),
}

/// See the head of this file.
pub struct KeyedChannel {
    name: String,
    /// As it was last read.
    section: ArcSwap<ChannelSection>,
    wire: Arc<dyn Wire>,
    clock: Arc<dyn Clock>,
    current: ArcSwap<Box<dyn Channel>>,
}

impl KeyedChannel {
    /// The channel of a checked table of the configuration.
    ///
    /// # Errors
    /// [`ChannelOpenError`]: the operator must change the configuration.
    pub fn open(
        name: &str,
        section: &ChannelSection,
        call_timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<KeyedChannel, ChannelOpenError> {
        let url = section.base_url();
        let wire = HttpWire::new(url, call_timeout, BILL_SILENCE)
            .map_err(|error| ChannelOpenError::Address(name.into(), url.into(), error))?;
        let wire: Arc<dyn Wire> = Arc::new(wire);
        let current = adapter(section, &wire, &clock)
            .map_err(|error| ChannelOpenError::Key(name.to_owned(), error))?;
        Ok(KeyedChannel {
            name: name.to_owned(),
            section: ArcSwap::from_pointee(section.clone()),
            wire,
            clock,
            current: ArcSwap::from_pointee(current),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads its files again (blocks), and has the new keys in force. Returns whether they have
    /// changed.
    ///
    /// # Errors
    /// [`ChannelOpenError`]: the earlier keys stay in force.
    pub fn reread(&self) -> Result<bool, ChannelOpenError> {
        let known = self.section.load_full();
        let mut section = (*known).clone();
        section.read_files(&self.name)?;
        if section == *known {
            return Ok(false);
        }
        let adapter = adapter(&section, &self.wire, &self.clock)
            .map_err(|error| ChannelOpenError::Key(self.name.clone(), error))?;
        // Before it is in force: it has to know the keys that the list of the channel has.
        adapter.renew();
        self.current.store(Arc::new(adapter));
        self.section.store(Arc::new(section));
        Ok(true)
    }
}

/// The adapter of a checked table with its files.
fn adapter(
    section: &ChannelSection,
    wire: &Arc<dyn Wire>,
    clock: &Arc<dyn Clock>,
) -> Result<Box<dyn Channel>, ChannelKeyError> {
    let (wire, clock) = (Arc::clone(wire), Arc::clone(clock));
    let (read, text) = (&section.read, |text: &Option<String>| text.clone().unwrap_or_default());
    let secret = |secret: &Option<Secret>| secret.clone().unwrap_or_else(|| Secret::new(""));
    Ok(match section.kind {
        Some(ChannelKind::WeChat) | None => {
            let key = |(id, pem): &(Option<String>, Secret)| {
                let pem = pem.expose().to_owned();
                match id {
                    Some(id) => WeChatKey::PublicKey { id: id.clone(), pem },
                    None => WeChatKey::Certificate(pem),
                }
            };
            let settings = WeChatSettings {
                mchid: text(&section.mchid),
                appid: text(&section.appid),
                api_v3_key: secret(&read.api_v3_key),
                merchant_serial: text(&section.merchant_serial),
                merchant_key: secret(&read.merchant_key),
                platform_keys: read.platform.iter().map(key).collect(),
                close_after: Duration::from_millis(section.close_after_ms()),
            };
            let entropy = Box::new(SystemEntropy::default());
            Box::new(WeChat::new(&settings, wire, clock, entropy)?)
        }
        Some(ChannelKind::Stripe) => {
            let secrets = [&read.webhook_secret, &read.previous_webhook_secret];
            let settings = StripeSettings {
                api_key: secret(&read.api_key),
                webhook_secrets: secrets.into_iter().flatten().cloned().collect(),
                account: section.account.clone(),
                livemode: section.livemode,
            };
            Box::new(Stripe::new(&settings, wire, clock)?)
        }
    })
}

impl Channel for Arc<KeyedChannel> {
    fn limits(&self) -> ChannelLimits {
        self.current.load().limits()
    }

    fn create(&self, ask: &CreateAsk<'_>) -> Created {
        self.current.load_full().create(ask)
    }

    fn callback(
        &self,
        head: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Vec<Notice>, Rejected> {
        self.current.load_full().callback(head, body, now)
    }

    fn query(&self, order: &OrderAsk<'_>) -> Queried {
        self.current.load_full().query(order)
    }

    fn close(&self, order: &OrderAsk<'_>) -> Closing {
        self.current.load_full().close(order)
    }

    fn refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        self.current.load_full().refund(ask)
    }

    fn query_refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        self.current.load_full().query_refund(ask)
    }

    fn returned(&self, ask: &RefundAsk<'_>) -> ReturnedSum {
        self.current.load_full().returned(ask)
    }

    fn bill(&self, ask: &BillAsk, lines: &mut dyn FnMut(BillLine)) -> Billed {
        self.current.load_full().bill(ask, lines)
    }

    fn renew(&self) -> Renewal {
        self.current.load_full().renew()
    }

    fn keys_end(&self) -> Option<Timestamp> {
        self.current.load().keys_end()
    }

    fn acknowledge(&self, end: CallbackEnd) -> Acknowledgement {
        self.current.load().acknowledge(end)
    }
}
