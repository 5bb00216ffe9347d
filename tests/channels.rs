//! Payment channels: their adapters against forged messages, and against the simulator's process.

/// Messages that another one than the channel has signed, or changed.
mod forged;
/// Refunds that are asked for again.
mod refunds;
/// The adapters against `ubscore channel-sim`.
pub(crate) mod simulated;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use ubscore::channels::stripe::{Stripe, StripeSettings};
use ubscore::channels::wechat::{WeChat, WeChatKey, WeChatSettings};
use ubscore::channels::wire::{Wire, WireCall, WireError, WireStream};
use ubscore::clock::{Clock, SystemClock};
use ubscore::config::secret::Secret;
use ubscore::entropy::SystemEntropy;

const MCHID: &str = "1900000001";
const APPID: &str = "wx0000000000000001";
const MERCHANT_SERIAL: &str = "5157F09EFDC096DE15EBE81A47057A72";
const API_V3_KEY: &str = "0123456789abcdef0123456789abcdef";

/// The settings of a merchant of WeChat Pay.
fn wechat_settings(key_pem: &str, platform_keys: Vec<WeChatKey>) -> WeChatSettings {
    WeChatSettings {
        mchid: MCHID.to_owned(),
        appid: APPID.to_owned(),
        api_v3_key: Secret::new(API_V3_KEY),
        merchant_serial: MERCHANT_SERIAL.to_owned(),
        merchant_key: Secret::new(key_pem),
        platform_keys,
        close_after: Duration::from_secs(300),
    }
}

fn wechat(settings: &WeChatSettings, wire: Arc<dyn Wire>) -> WeChat {
    let clock = Arc::new(SystemClock::new());
    let entropy = Box::new(SystemEntropy::default());
    WeChat::new(settings, wire, clock, entropy).expect("keys")
}

fn stripe(secrets: &[&str], key: &str, wire: Arc<dyn Wire>) -> Stripe {
    let settings = StripeSettings {
        api_key: Secret::new(key),
        webhook_secrets: secrets.iter().map(|secret| Secret::new(*secret)).collect(),
        account: None,
        livemode: false,
    };
    Stripe::new(&settings, wire, Arc::new(SystemClock::new())).expect("secrets")
}

/// The machine's time.
fn now() -> Timestamp {
    let second = SystemClock::new().now_s();
    Timestamp::from_second(i64::try_from(second).expect("a time")).expect("a time")
}

/// A network that keeps each call, and answers none.
#[derive(Default)]
struct Silent(Mutex<Vec<WireCall>>);

impl Wire for Silent {
    fn open(&self, call: &WireCall) -> Result<WireStream, WireError> {
        self.0.lock().expect("no panic").push(call.clone());
        Err(WireError::Unanswered("silent".to_owned()))
    }

    fn own_target(&self, _: &str) -> Option<String> {
        None
    }
}
