//! The payment channels: one table for each merchant account.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::civil::Time;
use serde::Deserialize;

use super::bound::DAY_MS;
use super::file::read_secret;
use super::names::names;
use super::secret::Secret;
use super::{Error, range};

/// The longest name, bytes: a part of the keys of accounts and payments.
const NAME_BYTES_MAX: usize = 16;
/// Names that begin accounts of movements which no channel has.
const RESERVED: [&str; 3] = ["user", "promotion", "outside"];
/// The most channels: each has its own series of metrics, and keys in memory.
const CHANNELS_MAX: usize = 16;
/// The longest text of a key that names the merchant, bytes.
const TEXT_BYTES_MAX: usize = 64;
/// The beginning of a public key's id; certificates have their serial inside.
const PUBLIC_KEY: &str = "PUB_KEY_ID_";
/// WeChat Pay closes no order that is younger, ms.
const CLOSE_AFTER_MS: u64 = 300_000;

/// The tables `[channels.NAME]`, by name.
pub type Channels = BTreeMap<String, ChannelSection>;

/// The table `[channels.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelSection {
    /// The format that the channel speaks; needed.
    pub kind: Option<ChannelKind>,
    /// The symbol of the asset that payments become; needed.
    pub asset: Option<String>,
    /// ISO 4217, upper case; needed.
    pub currency: Option<String>,
    /// Decimals of the channel's minor unit; needed.
    pub minor_digits: Option<u8>,
    /// The smallest order, decimal text; absent: one minor unit.
    pub min: Option<String>,
    /// The largest order, decimal text; needed.
    pub max: Option<String>,
    /// The channel's address; absent: the channel's own.
    pub base_url: Option<String>,
    /// An order is not closed before this age, ms; WeChat Pay.
    pub close_after_ms: Option<u64>,
    /// The bill of a day is there at this time of the next one, HH:MM in the channel's offset;
    /// absent: the channel's own.
    pub bill_at: Option<String>,
    /// The merchant's number; WeChat Pay.
    pub mchid: Option<String>,
    /// The application that payers see; WeChat Pay.
    pub appid: Option<String>,
    /// A file that holds the API v3 key; WeChat Pay.
    pub api_v3_key_file: Option<PathBuf>,
    /// The serial number of the merchant's certificate; WeChat Pay.
    pub merchant_serial: Option<String>,
    /// A file that holds the merchant's private key, PEM; WeChat Pay.
    pub merchant_key_file: Option<PathBuf>,
    /// Files of the platform's certificates, or `PUB_KEY_ID_…=FILE`; WeChat Pay.
    #[serde(deserialize_with = "names")]
    pub platform_keys: Vec<String>,
    /// A file that holds the key of the API; Stripe.
    pub api_key_file: Option<PathBuf>,
    /// A file that holds the secret of callbacks; Stripe.
    pub webhook_secret_file: Option<PathBuf>,
    /// A file that holds the secret before it, or an empty file; Stripe.
    pub previous_webhook_secret_file: Option<PathBuf>,
    /// The connected account; absent: the key's own; Stripe.
    pub account: Option<String>,
    /// Whether money is real; Stripe.
    pub livemode: bool,
    /// The contents of the files, once they are read. No key.
    #[serde(skip)]
    pub read: ChannelFiles,
}

/// The formats of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelKind {
    /// WeChat Pay, API v3.
    WeChat,
    /// Stripe, PaymentIntents.
    Stripe,
}

/// The contents of the files that a table names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChannelFiles {
    /// Of `api_v3_key_file`.
    pub api_v3_key: Option<Secret>,
    /// Of `merchant_key_file`.
    pub merchant_key: Option<Secret>,
    /// Of `platform_keys`: the id, `None` for a certificate, and the PEM.
    pub platform: Vec<(Option<String>, Secret)>,
    /// Of `api_key_file`.
    pub api_key: Option<Secret>,
    /// Of `webhook_secret_file`.
    pub webhook_secret: Option<Secret>,
    /// Of `previous_webhook_secret_file`; `None`: the file is empty.
    pub previous_webhook_secret: Option<Secret>,
}

impl ChannelKind {
    /// The address of the real channel.
    fn base_url(self) -> &'static str {
        match self {
            ChannelKind::WeChat => "https://api.mch.weixin.qq.com",
            ChannelKind::Stripe => "https://api.stripe.com",
        }
    }

    /// Its bill of a day is there at this time of the next one.
    fn bill_at(self) -> Time {
        match self {
            ChannelKind::WeChat => Time::constant(10, 30, 0, 0),
            // A transaction may appear some time behind its payment.
            ChannelKind::Stripe => Time::constant(6, 0, 0, 0),
        }
    }

    /// The offset from UTC in which it counts days, hours.
    pub fn offset_hours(self) -> i8 {
        match self {
            ChannelKind::WeChat => 8,
            ChannelKind::Stripe => 0,
        }
    }

    /// Its word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ChannelKind::WeChat => "wechat",
            ChannelKind::Stripe => "stripe",
        }
    }
}

impl ChannelSection {
    /// The channel's address.
    pub fn base_url(&self) -> &str {
        let own = self.kind.map_or("", ChannelKind::base_url);
        self.base_url.as_deref().unwrap_or(own)
    }

    /// An order is not closed before this age, ms.
    pub fn close_after_ms(&self) -> u64 {
        self.close_after_ms.unwrap_or(CLOSE_AFTER_MS)
    }

    /// The bill of a day is there at this time of the next one, in the channel's offset.
    pub fn bill_at(&self) -> Time {
        let own = self.kind.map_or(Time::midnight(), ChannelKind::bill_at);
        self.bill_at.as_deref().and_then(time_of_day).unwrap_or(own)
    }

    /// The merchant account, as text that stays the same over a change of keys. Stripe's own
    /// account has no number in the configuration, so there is one for each mode.
    pub fn merchant(&self) -> String {
        let mode = if self.livemode { "live" } else { "test" };
        match self.kind {
            Some(ChannelKind::WeChat) => {
                format!("wechat/{}", self.mchid.as_deref().unwrap_or_default())
            }
            Some(ChannelKind::Stripe) => {
                format!("stripe/{mode}/{}", self.account.as_deref().unwrap_or("own"))
            }
            None => String::new(),
        }
    }

    /// Reads the files that it names.
    ///
    /// # Errors
    /// [`Error::SecretFile`]: one cannot be read.
    pub fn read_files(&mut self, name: &str) -> Result<(), Error> {
        let read = |end: &str, file: &Option<PathBuf>| {
            let mut secret = None;
            read_secret(key(name, end), &mut secret, file).map(|()| secret)
        };
        let platform = |entry: &String| {
            let (id, file) = match entry.split_once('=') {
                Some((id, file)) if id.starts_with(PUBLIC_KEY) => (Some(id.to_owned()), file),
                _ => (None, entry.as_str()),
            };
            let pem = read("platform_keys", &Some(PathBuf::from(file)))?;
            Ok((id, pem.expect("a file is named")))
        };
        let previous = "previous_webhook_secret_file";
        let previous = read(previous, &self.previous_webhook_secret_file)?;
        self.read = ChannelFiles {
            api_v3_key: read("api_v3_key_file", &self.api_v3_key_file)?,
            merchant_key: read("merchant_key_file", &self.merchant_key_file)?,
            platform: self.platform_keys.iter().map(platform).collect::<Result<_, Error>>()?,
            api_key: read("api_key_file", &self.api_key_file)?,
            webhook_secret: read("webhook_secret_file", &self.webhook_secret_file)?,
            previous_webhook_secret: previous.filter(|secret| !secret.expose().is_empty()),
        };
        Ok(())
    }

    fn validate(&self, name: &str) -> Result<(), Error> {
        let missing = |end, advice| Err(Error::Missing { key: key(name, end).into(), advice });
        let Some(kind) = self.kind else {
            return missing("kind", "give \"wechat\" or \"stripe\"");
        };
        match &self.currency {
            None => return missing("currency", "give its code of ISO 4217, for example \"CNY\""),
            Some(code) if code.len() != 3 || !code.bytes().all(|b| b.is_ascii_uppercase()) => {
                let allowed = "three capital letters of ISO 4217";
                return Err(range(key(name, "currency"), format!("{code:?}"), allowed));
            }
            Some(_) => {}
        }
        if self.asset.is_none() {
            return missing("asset", "give the symbol of the asset that payments become");
        }
        if self.minor_digits.is_none() {
            return missing("minor_digits", "give the decimals of its minor unit, 2 for fen");
        }
        if self.max.is_none() {
            return missing("max", "give the largest order");
        }
        if let Some(ms) = self.close_after_ms.filter(|ms| *ms > DAY_MS) {
            return Err(range(key(name, "close_after_ms"), ms, format!("0..={DAY_MS} ms")));
        }
        if let Some(text) = self.bill_at.as_ref().filter(|text| time_of_day(text).is_none()) {
            let allowed = "a time of day, such as \"10:30\"";
            return Err(range(key(name, "bill_at"), format!("{text:?}"), allowed));
        }
        self.validate_keys(name, kind)
    }

    /// Each format has its own keys. A key of the other one is a mistake, and is not ignored.
    fn validate_keys(&self, name: &str, kind: ChannelKind) -> Result<(), Error> {
        let text = |value: &Option<String>| value.clone();
        let path = |value: &Option<PathBuf>| value.as_ref().map(|path| path.display().to_string());
        let list = (!self.platform_keys.is_empty()).then(|| "there".to_owned());
        let age = self.close_after_ms.map(|ms| ms.to_string());
        let wechat = [
            ("mchid", text(&self.mchid), true),
            ("appid", text(&self.appid), true),
            ("merchant_serial", text(&self.merchant_serial), true),
            ("api_v3_key_file", path(&self.api_v3_key_file), true),
            ("merchant_key_file", path(&self.merchant_key_file), true),
            ("platform_keys", list, false),
            ("close_after_ms", age, false),
        ];
        let stripe = [
            ("api_key_file", path(&self.api_key_file), true),
            ("webhook_secret_file", path(&self.webhook_secret_file), true),
            ("previous_webhook_secret_file", path(&self.previous_webhook_secret_file), false),
            ("account", text(&self.account), false),
            ("livemode", self.livemode.then(|| "true".to_owned()), false),
        ];
        let (own, other): (&[_], &[_]) = match kind {
            ChannelKind::WeChat => (&wechat, &stripe),
            ChannelKind::Stripe => (&stripe, &wechat),
        };
        if let Some((end, Some(value), _)) = other.iter().find(|(_, value, _)| value.is_some()) {
            let allowed = format!("absent where kind is {:?}", kind.name());
            return Err(range(key(name, end), value, allowed));
        }
        if let Some((end, ..)) = own.iter().find(|(_, value, needed)| *needed && value.is_none()) {
            let advice = "the channel's kind needs it; see config/ubscore.toml";
            return Err(Error::Missing { key: key(name, end).into(), advice });
        }
        let sane = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        for (end, value, _) in own.iter().filter(|(end, ..)| is_of_merchant(end)) {
            let is_sane = |text: &String| {
                (1..=TEXT_BYTES_MAX).contains(&text.len()) && text.bytes().all(sane)
            };
            if let Some(text) = value.as_ref().filter(|text| !is_sane(text)) {
                let allowed = format!("1 to {TEXT_BYTES_MAX} of a-z A-Z 0-9 _ -");
                return Err(range(key(name, end), format!("{text:?}"), allowed));
            }
        }
        Ok(())
    }
}

/// Whether a key is text that stands in requests.
fn is_of_merchant(end: &str) -> bool {
    ["mchid", "appid", "merchant_serial", "account"].contains(&end)
}

/// A time of day, HH:MM; `None`: it is none.
fn time_of_day(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':').filter(|_| text.len() == 5)?;
    let plain = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let part = |text: &str| text.parse::<i8>().ok().filter(|_| plain(text));
    Time::new(part(hour)?, part(minute)?, 0, 0).ok()
}

/// `channels.NAME.key`.
fn key(name: &str, end: &str) -> String {
    format!("channels.{name}.{end}")
}

/// Reads the files of all channels.
pub(super) fn read_files(channels: &mut Channels) -> Result<(), Error> {
    channels.iter_mut().try_for_each(|(name, channel)| channel.read_files(name))
}

/// Checks all names and tables. `enabled`: there are recharges.
pub(super) fn validate(channels: &Channels, enabled: bool) -> Result<(), Error> {
    if channels.len() > CHANNELS_MAX {
        let allowed = format!("at most {CHANNELS_MAX} tables");
        return Err(range("channels", format!("{} tables", channels.len()), allowed));
    }
    if enabled && channels.is_empty() {
        let advice = "recharges are enabled, and need a table [channels.NAME]";
        return Err(Error::Missing { key: "channels".into(), advice });
    }
    let mut merchants: BTreeMap<String, &str> = BTreeMap::new();
    for (name, channel) in channels {
        let sane = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(sane);
        if !fits || RESERVED.contains(&name.as_str()) {
            let allowed = format!(
                "a name of 1 to {NAME_BYTES_MAX} of a-z 0-9 -, and none of {}",
                RESERVED.join(", ")
            );
            return Err(range("channels", format!("{name:?}"), allowed));
        }
        channel.validate(name)?;
        let merchant = channel.merchant();
        if let Some(other) = merchants.insert(merchant.clone(), name) {
            let allowed = format!("another merchant than that of channels.{other}");
            return Err(range(format!("channels.{name}"), merchant, allowed));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{OWN_SECRET, assert_refused, file, load, refusal};

    const COMMON: &str = "asset = \"CNY\"\ncurrency = \"CNY\"\nminor_digits = 2\nmax = \"50000\"";

    /// A whole table of a merchant of WeChat Pay; each file holds `text`.
    fn wechat(name: &str, mchid: &str, path: &str) -> String {
        format!(
            "[channels.{name}]\nkind = \"wechat\"\n{COMMON}\nmchid = \"{mchid}\"\nappid = \"wx1\"\n\
             merchant_serial = \"5A\"\napi_v3_key_file = \"{path}\"\nmerchant_key_file = \"{path}\"\n\
             platform_keys = [\"{path}\", \"PUB_KEY_ID_01={path}\"]\n"
        )
    }

    fn stripe(name: &str, path: &str, more: &str) -> String {
        format!(
            "[channels.{name}]\nkind = \"stripe\"\n{COMMON}\napi_key_file = \"{path}\"\n\
             webhook_secret_file = \"{path}\"\n{more}\n"
        )
    }

    #[test]
    fn a_channel_has_the_keys_of_its_kind() {
        let secret = file("a secret\n");
        let path = secret.path().display().to_string();
        let text = format!("{}{}", wechat("a-1", "19", &path), stripe("card", &path, ""));
        let channels = load(&text, &[]).expect("loaded").channels;
        let (wechat_pay, card) = (&channels["a-1"], &channels["card"]);
        let held = Secret::new("a secret");
        let platform = [(None, held.clone()), (Some("PUB_KEY_ID_01".to_owned()), held.clone())];
        assert_eq!(wechat_pay.read.platform, platform);
        assert_eq!(
            (wechat_pay.merchant(), wechat_pay.close_after_ms()),
            ("wechat/19".into(), 300_000)
        );
        assert_eq!(wechat_pay.base_url(), "https://api.mch.weixin.qq.com");
        assert_eq!(wechat_pay.bill_at(), Time::constant(10, 30, 0, 0));
        let early = load(&stripe("card", &path, "bill_at = \"01:05\""), &[]).expect("loaded");
        assert_eq!(early.channels["card"].bill_at(), Time::constant(1, 5, 0, 0));
        assert_eq!(card.read.webhook_secret, Some(held));
        assert_eq!(card.merchant(), "stripe/test/own");

        let without = |text: String, key: &str| -> String {
            text.lines()
                .filter(|line| !line.starts_with(key))
                .map(|line| format!("{line}\n"))
                .collect()
        };
        for key in [
            "kind",
            "asset",
            "currency",
            "minor_digits",
            "max",
            "mchid",
            "appid",
            "merchant_serial",
            "api_v3_key_file",
            "merchant_key_file",
        ] {
            let said = refusal(&without(wechat("w", "19", &path), key), &[]);
            assert!(said.starts_with(&format!("channels.w.{key} is missing")), "{said}");
        }
        for key in ["api_key_file", "webhook_secret_file"] {
            let said = refusal(&without(stripe("card", &path, ""), key), &[]);
            assert!(said.starts_with(&format!("channels.card.{key} is missing")), "{said}");
        }
        let both = format!("{}livemode = true", wechat("w", "19", &path));
        assert!(refusal(&both, &[]).starts_with("channels.w.livemode = true: must be absent"));
    }

    #[test]
    fn a_wrong_channel_is_refused_by_its_key() {
        let secret = file("a secret");
        let path = secret.path().display().to_string();
        let card = |more: &str| stripe("card", &path, more);
        let cases = [
            ("[channels.w]\nkind = \"paypal\"".to_owned(), "channels.w.kind: unknown variant"),
            ("[channels.w]\nsecret = \"x\"".to_owned(), "channels.w.secret: unknown key; known"),
            ("[channels.w]\nminor_digits = \"two\"".to_owned(), "channels.w.minor_digits: "),
            ("channels = 271".to_owned(), "channels: must be tables of "),
            ("[channels.w]\nmchid = 7".to_owned(), "channels.w.mchid: "),
            (card("account = \"a b\""), "channels.card.account = \"a b\""),
            (
                card("previous_webhook_secret_file = \"/nowhere\""),
                "channels.card.previous_webhook_secret_file = /nowhere: cannot be read",
            ),
            (stripe("Card", &path, ""), "channels = \"Card\""),
            (stripe("user", &path, ""), "channels = \"user\""),
            (card("bill_at = \"7:30\""), "channels.card.bill_at = \"7:30\": must be a time of day"),
            (card("bill_at = \"24:00\""), "channels.card.bill_at = \"24:00\""),
            (card("").replace("\"CNY\"\nminor", "\"yuan\"\nminor"), "channels.card.currency = "),
            (
                format!("{}{}", card(""), stripe("other", &path, "")),
                "channels.other = stripe/test/own: must be another merchant than that of channels.card",
            ),
            (format!("{}{}", wechat("a", "19", &path), wechat("b", "19", &path)), "channels.b = "),
        ];
        for (text, start) in &cases {
            assert_refused(&[(text.as_str(), start)]);
        }
        let two = format!("{}{}", card(""), stripe("other", &path, "account = \"acct_1\""));
        assert_eq!(load(&two, &[]).expect("two merchants").channels.len(), 2);
        let given = [("UBSCORE__CHANNELS__CARD__LIVEMODE", "true")];
        assert!(load(&card(""), &given).expect("loaded").channels["card"].livemode);
    }

    #[test]
    fn enabled_recharges_need_a_channel() {
        let on = format!(
            "[recharge]\nenabled = true\ndeployment = \"a\"\nproof_secret = \"{OWN_SECRET}\"\n"
        );
        assert_refused(&[(&on, "channels is missing")]);
        let secret = file("a secret");
        let path = secret.path().display().to_string();
        assert!(load(&format!("{on}{}", stripe("card", &path, "")), &[]).is_ok());
    }
}
