//! Callbacks that are kept for operators as they came: of payments that are held, or not here, or
//! contradict their record.
//!
//! They are written behind the decision by tasks of their own. Nothing waits for one, and nothing
//! rests on one: it may be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::body::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Mutex, Semaphore};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::postgres::admin::Admin;
use crate::postgres::admin::notices::NewNotice;
use crate::recharge::PaymentId;

/// The most that are being written. Beyond them one is not kept.
const WRITTEN_AT_ONCE_MAX: usize = 16;
/// The pause between two deletions of old ones.
const FORGET_EVERY: Duration = Duration::from_secs(60 * 60);

/// Where callbacks are kept.
pub struct KeptNotices {
    admin: Admin,
    clock: Arc<dyn Clock>,
    keep: Duration,
    places: Arc<Semaphore>,
    /// Held by the one that is written: the rows of a payment are counted before.
    one: Arc<Mutex<()>>,
    /// Of the last deletion, monotonic ns; 0: there was none.
    forgot_ns: AtomicU64,
}

/// A callback as it came.
#[derive(Clone)]
pub struct Letter {
    /// All of its headers.
    pub head: HeaderMap,
    /// As it was signed.
    pub body: Bytes,
}

impl Letter {
    /// The headers of its signature.
    fn signature(&self) -> Vec<String> {
        let signs = |name: &str| name.starts_with("wechatpay-") || name.ends_with("-signature");
        let all = self.head.iter().filter(|(name, _)| signs(name.as_str()));
        all.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?"))).collect()
    }
}

impl KeptNotices {
    /// Keeps callbacks for so long.
    pub fn new(admin: Admin, clock: Arc<dyn Clock>, keep: Duration) -> KeptNotices {
        let places = Arc::new(Semaphore::new(WRITTEN_AT_ONCE_MAX));
        let one = Arc::default();
        KeptNotices { admin, clock, keep, places, one, forgot_ns: AtomicU64::new(0) }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(self.clock.now_ns().into()).expect("any u64 of ns is in range")
    }

    /// Keeps a callback about a payment of a channel. Returns at once.
    pub fn keep(&self, channel: &str, trade_no: &str, outcome: &'static str, letter: &Letter) {
        let payment = PaymentId::of(channel, trade_no);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            warn!(channel, %payment, outcome, "a callback is not kept: too many at once");
            return;
        };
        let notice = NewNotice {
            at: self.now(),
            payment,
            channel: channel.to_owned(),
            trade_no: trade_no.to_owned(),
            outcome,
            head: letter.signature(),
            body: letter.body.to_vec(),
        };
        let (admin, one) = (self.admin.clone(), Arc::clone(&self.one));
        tokio::spawn(async move {
            let _one = one.lock().await;
            if let Err(error) = admin.keep_notice(&notice).await {
                warn!(channel = notice.channel, %payment, %error, "a callback is not kept");
            }
            drop(place);
        });
    }

    /// Deletes old ones, once an hour.
    pub async fn forget_old(&self) {
        let now_ns = self.clock.monotonic_ns().max(1);
        let last_ns = self.forgot_ns.load(Ordering::Relaxed);
        let every_ns = u64::try_from(FORGET_EVERY.min(self.keep).as_nanos()).unwrap_or(u64::MAX);
        if last_ns != 0 && now_ns.saturating_sub(last_ns) < every_ns {
            return;
        }
        self.forgot_ns.store(now_ns, Ordering::Relaxed);
        let keep = SignedDuration::try_from(self.keep).unwrap_or(SignedDuration::MAX);
        let before = self.now().checked_sub(keep).unwrap_or(Timestamp::UNIX_EPOCH);
        match self.admin.forget_notices(before).await {
            Ok(0) => {}
            Ok(gone) => info!(gone, "old callbacks of channels are deleted"),
            Err(error) => warn!(%error, "old callbacks of channels are not deleted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    /// Goal: the signature is kept, and no other header.
    #[test]
    fn the_headers_of_a_signature_are_kept() {
        let mut head = HeaderMap::new();
        for name in ["host", "authorization", "content-type"] {
            head.insert(name, HeaderValue::from_static("x"));
        }
        head.insert("wechatpay-serial", HeaderValue::from_static("4A01"));
        head.insert("stripe-signature", HeaderValue::from_static("t=1,v1=00"));
        let mut kept = Letter { head, body: Bytes::new() }.signature();
        kept.sort();
        assert_eq!(kept, ["stripe-signature: t=1,v1=00", "wechatpay-serial: 4A01"]);
    }
}
