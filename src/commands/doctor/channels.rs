//! The payment channels of the configuration: whether each answers, its clock, its keys, and the
//! address that they reach. Nothing is looked at while recharges are off.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::header::DATE;
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};

use super::finding::{Finding, Verdict};
use crate::channels::keyed::{ChannelOpenError, KeyedChannel};
use crate::channels::wire::{BaseUrlError, HttpWire, WireCall, WireError, fetch};
use crate::channels::{Channel, Renewal};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::recharge::answers::ChannelDoubt;
use crate::telemetry::chain;

/// A signature is refused if its time is 300 s off; this leaves a minute.
const CLOCK_APART_S: u64 = 240;
/// A key that ends sooner has to be replaced now.
const KEYS_END_SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Why a channel or its keys cannot be used.
#[derive(Debug, thiserror::Error)]
enum ChannelProblem {
    #[error(transparent)]
    Address(#[from] BaseUrlError),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Open(#[from] ChannelOpenError),
    #[error(transparent)]
    Doubt(#[from] ChannelDoubt),
}

/// The observations of one channel.
pub(super) struct ChannelSeen {
    name: String,
    /// How far the channel's clock is ahead of ours, seconds; `None`: it does not tell its time.
    /// Why it does not answer.
    clock_ahead_s: Result<Option<i64>, ChannelProblem>,
    /// The end of its last key, if it has one; why its keys cannot be used.
    keys_end: Result<Option<Timestamp>, ChannelProblem>,
}

/// Everything about channels; `None`: recharges are off.
pub(super) struct ChannelsSeen {
    channels: Vec<ChannelSeen>,
    public_url: Option<String>,
    now: Timestamp,
}

impl ChannelsSeen {
    /// Asks each channel for its time and its keys. That changes nothing there.
    pub(super) fn look(config: &Config, clock: &impl Clock) -> Option<ChannelsSeen> {
        if !config.recharge.enabled {
            return None;
        }
        let timeout = Duration::from_millis(config.recharge.call_timeout_ms);
        let now_s = || i64::try_from(clock.now_s()).unwrap_or(i64::MAX);
        let mut channels = Vec::new();
        for (name, section) in &config.channels {
            let ask = || {
                let wire = HttpWire::new(section.base_url(), timeout, timeout)?;
                let answer = fetch(&wire, &WireCall::get("/".to_owned()))?;
                let date = answer.head.get(DATE).and_then(|date| date.to_str().ok());
                let date = date.and_then(|text| rfc2822::parse(text).ok());
                Ok(date.map(|date| date.timestamp().as_second() - now_s()))
            };
            let clock_ahead_s = ask();
            let renew = || {
                let clock = Arc::new(SystemClock::new());
                let channel = Arc::new(KeyedChannel::open(name, section, timeout, clock)?);
                match channel.renew() {
                    Renewal::Unknown(doubt) => Err(doubt.into()),
                    Renewal::Renewed | Renewal::NoList | Renewal::TooSoon => Ok(channel.keys_end()),
                }
            };
            let keys_end = renew();
            channels.push(ChannelSeen { name: name.clone(), clock_ahead_s, keys_end });
        }
        let public_url = config.callbacks.public_url.clone();
        let now = Timestamp::from_second(now_s()).unwrap_or(Timestamp::UNIX_EPOCH);
        Some(ChannelsSeen { channels, public_url, now })
    }

    /// The findings.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let of_one = |seen: &ChannelSeen| {
            let clock = clock(&seen.name, seen.clock_ahead_s.as_ref());
            [clock, keys(&seen.name, seen.keys_end.as_ref(), self.now)]
        };
        let channels = self.channels.iter().flat_map(of_one);
        channels.chain([public_url(self.public_url.as_deref())]).collect()
    }
}

fn finding(check: &'static str, verdict: Verdict, found: String, change: &str) -> Finding {
    let change = (verdict != Verdict::Ok).then(|| change.to_owned());
    Finding { check, verdict, found, change }
}

fn clock(name: &str, ahead_s: Result<&Option<i64>, &ChannelProblem>) -> Finding {
    let check = "channel";
    match ahead_s {
        Err(why) => {
            let change = "check channels.NAME.base_url, and that this machine reaches it";
            finding(check, Verdict::Bad, format!("{name} does not answer: {}", chain(why)), change)
        }
        Ok(None) => finding(check, Verdict::Ok, format!("{name} answers"), ""),
        Ok(Some(ahead_s)) => {
            let far = ahead_s.unsigned_abs() > CLOCK_APART_S;
            let verdict = if far { Verdict::Bad } else { Verdict::Ok };
            let found = format!("{name} answers; its clock is {ahead_s} s ahead of ours");
            let change = "correct this machine's time: beyond 300 s no callback is believed";
            finding(check, verdict, found, change)
        }
    }
}

fn keys(name: &str, end: Result<&Option<Timestamp>, &ChannelProblem>, now: Timestamp) -> Finding {
    let check = "channel keys";
    match end {
        Err(why) => {
            let change = "correct the keys of channels.NAME, and its files";
            finding(check, Verdict::Bad, format!("{name}: {}", chain(why)), change)
        }
        Ok(None) => finding(check, Verdict::Ok, format!("{name}: no key has an end"), ""),
        Ok(Some(end)) => {
            let soon = end.duration_since(now) < KEYS_END_SOON;
            let verdict = if soon { Verdict::Warn } else { Verdict::Ok };
            let change = "put the channel's next key beside it, in platform_keys";
            finding(check, verdict, format!("{name}: the last key ends at {end}"), change)
        }
    }
}

fn public_url(url: Option<&str>) -> Finding {
    let check = "callbacks.public_url";
    // Without one, only `serve --dev` starts.
    let Some(url) = url else {
        let found = "not set: in development, channels are given the listener's own address";
        return finding(check, Verdict::Ok, found.to_owned(), "");
    };
    let uri: Option<Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or("").trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let local = here || uri.as_ref().and_then(Uri::scheme_str) == Some("https");
    let verdict = if local { Verdict::Ok } else { Verdict::Bad };
    let change = "use https://: a callback names orders and amounts";
    finding(check, verdict, url.to_owned(), change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_off_is_bad() {
        for (ahead_s, verdict) in
            [(0, Verdict::Ok), (-240, Verdict::Ok), (241, Verdict::Bad), (-241, Verdict::Bad)]
        {
            assert_eq!(clock("wechat", Ok(&Some(ahead_s))).verdict, verdict, "{ahead_s}");
        }
        assert_eq!(clock("wechat", Ok(&None)).verdict, Verdict::Ok);
        assert_eq!(clock("wechat", Err(&ChannelDoubt::OwnKey.into())).verdict, Verdict::Bad);
    }

    #[test]
    fn a_key_that_ends_within_a_month_is_named() {
        let (now, day) = (Timestamp::UNIX_EPOCH, SignedDuration::from_hours(24));
        for (days, verdict) in [(29, Verdict::Warn), (31, Verdict::Ok), (-1, Verdict::Warn)] {
            let end = now.checked_add(day * days).expect("a time");
            let found = keys("wechat", Ok(&Some(end)), now);
            assert_eq!(found.verdict, verdict, "{days} days");
            assert!(found.found.contains("wechat"), "{}", found.found);
        }
        assert_eq!(keys("card", Ok(&None), now).verdict, Verdict::Ok);
        assert_eq!(keys("card", Err(&ChannelDoubt::OwnKey.into()), now).verdict, Verdict::Bad);
    }

    #[test]
    fn only_loopback_may_do_without_tls() {
        for url in
            ["https://pay.example", "http://127.0.0.1:8085", "http://localhost", "http://[::1]:1"]
        {
            assert_eq!(public_url(Some(url)).verdict, Verdict::Ok, "{url}");
        }
        for url in ["http://pay.example", "http://127.0.0.1.example", "x"] {
            assert_eq!(public_url(Some(url)).verdict, Verdict::Bad, "{url}");
        }
    }
}
