//! WeChat Pay, API v3, native payment: the payer scans a QR code.
//!
//! Source: `pay.weixin.qq.com/doc/v3/merchant`. Amounts are in fen.

mod bill;
mod keys;
mod signature;
mod trade;

use std::io::BufReader;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::{HeaderMap, Method};
use jiff::Timestamp;
use jiff::tz::Offset;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::bill::HashingReader;
pub use self::bill::read as read_bill;
use self::keys::PlatformKeys;
pub use self::keys::WeChatKey;
use self::signature::{Merchant, Seal};
use super::wire::{Wire, WireAnswer, WireCall, fetch};
use super::{
    Acknowledgement, BillAsk, CallbackEnd, Channel, ChannelKeyError, ChannelLimits, CreateAsk,
    Looked, OrderAsk, RefundAsk, Renewal, asked, check_encoding, json, now, refund_once,
};
use crate::clock::{Clock, NS_PER_S};
use crate::config::secret::Secret;
use crate::entropy::Entropy;
use crate::recharge::answers::{
    BillLine, Billed, ChannelDoubt, Closing, Created, Pay, PayKind, Queried, Refunded, Rejected,
};
use crate::recharge::facts::{Notice, Returned};

/// The channel's own zone: of bills and of the times in requests.
const ZONE: Offset = Offset::constant(8);

/// The time that the URL of a QR code is valid.
const CODE_VALID: Duration = Duration::from_secs(2 * 3600);

/// The pause between two fetches of the list of keys, seconds.
const RENEW_EVERY_S: u64 = 60;

/// Codes of `create` that refuse the order, and leave nothing of it at the channel.
const CREATE_REFUSED: [&str; 5] =
    ["PARAM_ERROR", "NO_AUTH", "APPID_MCHID_NOT_MATCH", "MCH_NOT_EXISTS", "RULE_LIMIT"];

/// Codes of `refund` that refuse it, with no money gone. `NOT_ENOUGH` is none: the merchant's
/// balance is short now, and the same refund may pass later. `INVALID_REQUEST`: more than is left
/// of the payment, or another body under a number that is used; a look follows.
const REFUND_REFUSED: [&str; 7] = [
    "INVALID_REQUEST",
    "PARAM_ERROR",
    "NO_AUTH",
    "MCH_NOT_EXISTS",
    "RESOURCE_NOT_EXISTS",
    "USER_ACCOUNT_ABNORMAL",
    "TRADE_OVERDUE",
];

/// The code of a query for a refund that the channel does not have.
const NO_SUCH_REFUND: &str = "RESOURCE_NOT_EXISTS";

/// A merchant of WeChat Pay.
#[derive(Clone, Debug)]
pub struct WeChatSettings {
    /// The merchant's number.
    pub mchid: String,
    /// The application that payers see.
    pub appid: String,
    /// The API v3 key, 32 bytes.
    pub api_v3_key: Secret,
    /// The serial number of the merchant's certificate.
    pub merchant_serial: String,
    /// The merchant's private key, PEM.
    pub merchant_key: Secret,
    /// The platform's keys that are known from the start. Both kinds may be there at once.
    pub platform_keys: Vec<WeChatKey>,
    /// An order is not closed before this age.
    pub close_after: Duration,
}

/// The adapter of WeChat Pay.
pub struct WeChat {
    mchid: String,
    appid: String,
    close_after: Duration,
    merchant: Merchant,
    seal: Seal,
    keys: ArcSwap<PlatformKeys>,
    /// Monotonic second of the last fetch of the list, plus 1; 0: none yet.
    renewed_s: AtomicU64,
    wire: Arc<dyn Wire>,
    clock: Arc<dyn Clock>,
    entropy: Mutex<Box<dyn Entropy>>,
}

impl WeChat {
    /// The adapter of one merchant.
    ///
    /// # Errors
    /// [`ChannelKeyError`]: a key or secret cannot be used.
    pub fn new(
        settings: &WeChatSettings,
        wire: Arc<dyn Wire>,
        clock: Arc<dyn Clock>,
        entropy: Box<dyn Entropy>,
    ) -> Result<WeChat, ChannelKeyError> {
        let (mchid, serial) = (settings.mchid.clone(), settings.merchant_serial.clone());
        Ok(WeChat {
            merchant: Merchant::new(&mchid, serial, &settings.merchant_key)?,
            mchid,
            appid: settings.appid.clone(),
            close_after: settings.close_after,
            seal: Seal::new(&settings.api_v3_key)?,
            keys: ArcSwap::from_pointee(PlatformKeys::new(&settings.platform_keys)?),
            renewed_s: AtomicU64::new(0),
            wire,
            clock,
            entropy: Mutex::new(entropy),
        })
    }

    /// A signed request, sent; its answer is verified.
    fn ask(&self, call: WireCall) -> Result<WireAnswer, ChannelDoubt> {
        let answer = fetch(&*self.wire, &self.signed(call))?;
        match answer.status {
            401 => return Err(ChannelDoubt::OwnKey),
            status if status == 429 || status >= 500 => return Err(ChannelDoubt::Status(status)),
            _ => {}
        }
        let verify = || {
            let now = now(&*self.clock);
            self.keys.load().verify(&answer.head, &answer.body, now)
        };
        let verified = match verify() {
            // Not inside a callback, so the list may be fetched.
            Err(Rejected::Serial) if self.renew() == Renewal::Renewed => verify(),
            other => other,
        };
        verified.map_err(ChannelDoubt::Unsigned)?;
        Ok(answer)
    }

    /// The request with the merchant's signature.
    fn signed(&self, call: WireCall) -> WireCall {
        let nonce = format!("{:032x}", self.entropy.lock().u128());
        let authorization = self.merchant.authorization(&call, self.clock.now_s(), &nonce);
        let call = call.with("accept", "application/json").with("authorization", authorization);
        match self.keys.load().wanted() {
            Some(serial) => call.with("wechatpay-serial", serial),
            None => call,
        }
    }

    /// A POST of JSON.
    fn post(&self, target: &str, body: &Value) -> Result<WireAnswer, ChannelDoubt> {
        let body = body.to_string().into_bytes();
        self.ask(WireCall::post(target.to_owned(), "application/json", body))
    }

    /// Whether an object names this merchant and application.
    ///
    /// # Errors
    /// [`Rejected::Merchant`], [`Rejected::Application`].
    fn check_owner(&self, value: &Value, has_application: bool) -> Result<(), Rejected> {
        if json::text(value, "/mchid") != Some(&self.mchid) {
            return Err(Rejected::Merchant);
        }
        if has_application && json::text(value, "/appid") != Some(&self.appid) {
            return Err(Rejected::Application);
        }
        Ok(())
    }

    /// A 200 of a query as its meaning; `None`: it is about something else.
    fn queried(&self, answer: &WireAnswer, order: &OrderAsk<'_>) -> Option<Queried> {
        let value = json::object(&answer.body)?;
        self.check_owner(&value, true).ok()?;
        if json::text(&value, "/out_trade_no")? != order.merchant_no {
            return None;
        }
        let returned = match json::text(&value, "/trade_state")? {
            "SUCCESS" => Returned::None,
            // Paid, and returned since. The answer has no sum.
            "REFUND" => Returned::Part,
            "NOTPAY" | "USERPAYING" | "PAYERROR" | "ACCEPT" => return Some(Queried::Open),
            "CLOSED" | "REVOKED" => return Some(Queried::Closed),
            _ => return None,
        };
        Some(Queried::Paid(vec![trade::facts(&value, returned)?]))
    }

    /// A 200 about a refund as its meaning.
    fn refunded(&self, answer: &WireAnswer, ask: &RefundAsk<'_>, is_query: bool) -> Refunded {
        let read = || {
            let value = json::object(&answer.body)?;
            // Where it names its payment, that is this one.
            let payment = json::text(&value, "/transaction_id");
            let same = json::text(&value, "/out_refund_no")? == ask.return_no
                && payment.is_none_or(|payment| payment == ask.trade_no)
                && json::amount(&value, "/amount/refund")? == ask.minor_units;
            let status = json::text(&value, "/status")?.to_owned();
            same.then_some(status)
        };
        let under_way = Refunded::UnderWay { is_stuck: false };
        match read().as_deref() {
            // The answer to a refund says accepted. The query decides.
            Some("SUCCESS" | "PROCESSING" | "CLOSED" | "ABNORMAL") if !is_query => under_way,
            Some("SUCCESS") => Refunded::Done,
            Some("PROCESSING") => under_way,
            Some("CLOSED") => Refunded::Refused("CLOSED".to_owned()),
            // The money has left us, and the payer's card refuses it.
            Some("ABNORMAL") => Refunded::UnderWay { is_stuck: true },
            _ => Refunded::Unknown(ChannelDoubt::Unreadable),
        }
    }

    /// Looks for a refund by our number.
    fn look(&self, ask: &RefundAsk<'_>) -> Looked {
        let target = format!("/v3/refund/domestic/refunds/{}", ask.return_no);
        let answer = self.ask(WireCall::get(target))?;
        if answer.status == 200 {
            return Ok(Some(self.refunded(&answer, ask, true)));
        }
        match code(&answer)? {
            code if code == NO_SUCH_REFUND => Ok(None),
            code => Err(ChannelDoubt::Code(code)),
        }
    }

    /// Asks for a refund, without a look for an earlier one.
    fn post_refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        let body = json!({
            "transaction_id": ask.trade_no,
            "out_refund_no": ask.return_no,
            "amount": {
                "refund": ask.minor_units,
                "total": ask.total_minor_units,
                "currency": ask.currency,
            },
        });
        let answer = match self.post("/v3/refund/domestic/refunds", &body) {
            Ok(answer) => answer,
            Err(doubt) => return Refunded::Unknown(doubt),
        };
        if answer.status == 200 {
            return self.refunded(&answer, ask, false);
        }
        match code(&answer) {
            Ok(code) if REFUND_REFUSED.contains(&&*code) => Refunded::Refused(code),
            Ok(code) => Refunded::Unknown(ChannelDoubt::Code(code)),
            Err(doubt) => Refunded::Unknown(doubt),
        }
    }

    /// The address of a day's bill and its digest.
    fn bill_address(&self, ask: &BillAsk) -> Result<(String, Vec<u8>), Billed> {
        let unknown = Billed::Unknown;
        let target = format!("/v3/bill/tradebill?bill_date={}&bill_type=ALL", ask.day);
        let answer = self.ask(WireCall::get(target)).map_err(unknown)?;
        if answer.status != 200 {
            return Err(match code(&answer) {
                Ok(code) if code == "NO_STATEMENT_EXIST" && !ask.has_trade => Billed::NoTrade,
                Ok(code) if ["NO_STATEMENT_EXIST", "STATEMENT_CREATING"].contains(&&*code) => {
                    Billed::NotYet
                }
                Ok(code) => Billed::Unknown(ChannelDoubt::Code(code)),
                Err(doubt) => Billed::Unknown(doubt),
            });
        }
        let read = || {
            let value = json::object(&answer.body)?;
            let digest = signature::from_hex(json::text(&value, "/hash_value")?)?;
            let target = self.wire.own_target(json::text(&value, "/download_url")?)?;
            let sha1 = json::text(&value, "/hash_type")? == "SHA1" && digest.len() == 20;
            sha1.then_some((target, digest))
        };
        read().ok_or(Billed::Unknown(ChannelDoubt::Unreadable))
    }
}

impl Channel for WeChat {
    fn limits(&self) -> ChannelLimits {
        ChannelLimits {
            close_after: self.close_after,
            expiry_max: CODE_VALID,
            proof_bytes_max: 128,
            ends_payment: true,
        }
    }

    fn create(&self, ask: &CreateAsk<'_>) -> Created {
        let body = json!({
            "appid": self.appid,
            "mchid": self.mchid,
            "description": ask.description,
            "out_trade_no": ask.merchant_no,
            "time_expire": rfc3339(ask.expires_at),
            "attach": ask.proof,
            "notify_url": ask.callback_url,
            "amount": {"total": ask.minor_units, "currency": ask.currency},
        });
        let answer = match self.post("/v3/pay/transactions/native", &body) {
            Ok(answer) => answer,
            Err(doubt) => return Created::Unknown(doubt),
        };
        if answer.status != 200 {
            return match code(&answer) {
                Ok(code) if is_paid(&code) => Created::Paid,
                Ok(code) if CREATE_REFUSED.contains(&&*code) => Created::Refused(code),
                Ok(code) => Created::Unknown(ChannelDoubt::Code(code)),
                Err(doubt) => Created::Unknown(doubt),
            };
        }
        let value = json::object(&answer.body);
        match value.as_ref().and_then(|value| json::text(value, "/code_url")) {
            Some(url) => {
                let end = now(&*self.clock).saturating_add(CODE_VALID).unwrap_or(ask.expires_at);
                let expires_at = Some(end.min(ask.expires_at));
                let pay = Pay { kind: PayKind::CodeUrl, value: url.to_owned(), expires_at };
                Created::Created { reference: ask.merchant_no.to_owned(), pay }
            }
            None => Created::Unknown(ChannelDoubt::Unreadable),
        }
    }

    fn callback(
        &self,
        head: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Vec<Notice>, Rejected> {
        check_encoding(head)?;
        self.keys.load().verify(head, body, now)?;
        let event = json::object(body).ok_or(Rejected::Malformed)?;
        let kind = json::text(&event, "/event_type").ok_or(Rejected::Malformed)?;
        let opened = self.seal.open(&event, "/resource")?;
        let resource = json::object(&opened).ok_or(Rejected::Malformed)?;
        let is_trade = kind.starts_with("TRANSACTION.");
        self.check_owner(&resource, is_trade)?;
        if kind == "TRANSACTION.SUCCESS" && json::text(&resource, "/trade_state") == Some("SUCCESS")
        {
            let facts = trade::facts(&resource, Returned::None).ok_or(Rejected::Malformed)?;
            return Ok(vec![Notice::Payment(facts)]);
        }
        let merchant_no = json::text(&resource, "/out_trade_no").map(str::to_owned);
        Ok(vec![merchant_no.map_or(Notice::Nothing, |merchant_no| Notice::Hint { merchant_no })])
    }

    fn query(&self, order: &OrderAsk<'_>) -> Queried {
        let (no, mchid) = (order.merchant_no, &self.mchid);
        let target = format!("/v3/pay/transactions/out-trade-no/{no}?mchid={mchid}");
        let answer = match self.ask(WireCall::get(target)) {
            Ok(answer) => answer,
            Err(doubt) => return Queried::Unknown(doubt),
        };
        if answer.status != 200 {
            return match code(&answer) {
                Ok(code) if is_absent(&code) => Queried::Absent,
                Ok(code) => Queried::Unknown(ChannelDoubt::Code(code)),
                Err(doubt) => Queried::Unknown(doubt),
            };
        }
        self.queried(&answer, order).unwrap_or(Queried::Unknown(ChannelDoubt::Unreadable))
    }

    fn close(&self, order: &OrderAsk<'_>) -> Closing {
        let target = format!("/v3/pay/transactions/out-trade-no/{}/close", order.merchant_no);
        let answer = match self.post(&target, &json!({"mchid": self.mchid})) {
            Ok(answer) => answer,
            Err(doubt) => return Closing::Unknown(doubt),
        };
        if answer.status == 204 {
            return Closing::Closed;
        }
        match code(&answer) {
            Ok(code) => match code.as_str() {
                "ORDER_CLOSED" | "ORDERCLOSED" => Closing::Closed,
                code if is_paid(code) => Closing::Paid,
                code if is_absent(code) => Closing::Absent,
                _ => Closing::Unknown(ChannelDoubt::Code(code)),
            },
            Err(doubt) => Closing::Unknown(doubt),
        }
    }

    fn refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        refund_once(|| self.look(ask), || self.post_refund(ask))
    }

    fn query_refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        asked(self.look(ask))
    }

    fn bill(&self, ask: &BillAsk, lines: &mut dyn FnMut(BillLine)) -> Billed {
        let (target, digest) = match self.bill_address(ask) {
            Ok(address) => address,
            Err(end) => return end,
        };
        let mut call = self.signed(WireCall::get(target));
        call.is_bill = true;
        let stream = match self.wire.open(&call) {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) => return Billed::Unknown(ChannelDoubt::Status(stream.status)),
            Err(error) => return Billed::Unknown(error.into()),
        };
        let mut body = HashingReader::new(stream.body);
        let end = bill::read(BufReader::new(&mut body), lines);
        let found = body.digest();
        match end {
            // The file is not signed. Its digest is, and stands for it.
            Ok(_) if found != digest => {
                Billed::Unknown(ChannelDoubt::Damaged("its digest is not the signed one"))
            }
            Ok(sums) => Billed::Whole(sums),
            Err(damage) => Billed::Unknown(damage),
        }
    }

    fn renew(&self) -> Renewal {
        let second = self.clock.monotonic_ns() / NS_PER_S + 1;
        let claimed = self.renewed_s.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            (last == 0 || second >= last + RENEW_EVERY_S).then_some(second)
        });
        if claimed.is_err() {
            return Renewal::TooSoon;
        }
        let call = self.signed(WireCall::get("/v3/certificates".to_owned()));
        let answer = match fetch(&*self.wire, &call) {
            Ok(answer) => answer,
            Err(error) => return Renewal::Unknown(error.into()),
        };
        match answer.status {
            200 => {}
            // A merchant with a public key of the platform has no certificates.
            403 => return Renewal::NoList,
            401 => return Renewal::Unknown(ChannelDoubt::OwnKey),
            status => return Renewal::Unknown(ChannelDoubt::Status(status)),
        }
        // Each certificate is sealed under the API v3 key, which vouches for it.
        match keys::listed(&answer.body, &self.seal) {
            Ok(listed) => {
                let now = now(&*self.clock);
                self.keys.rcu(|known| known.with(&listed, now));
                Renewal::Renewed
            }
            Err(rejected) => Renewal::Unknown(ChannelDoubt::Unsigned(rejected)),
        }
    }

    fn keys_end(&self) -> Option<Timestamp> {
        self.keys.load().end()
    }

    fn acknowledge(&self, end: CallbackEnd) -> Acknowledgement {
        Acknowledgement::of(end)
    }
}

/// The time in the channel's zone.
fn rfc3339(time: Timestamp) -> String {
    let time = Timestamp::from_second(time.as_second()).expect("a part of a timestamp");
    time.display_with_offset(ZONE).to_string()
}

/// The code of a signed error.
fn code(answer: &WireAnswer) -> Result<String, ChannelDoubt> {
    let value = json::object(&answer.body);
    let code = value.as_ref().and_then(|value| json::text(value, "/code"));
    // A code is a word. Anything else would stand in logs as it came.
    let word = |code: &&str| {
        code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    code.filter(word).map(str::to_owned).ok_or(ChannelDoubt::Status(answer.status))
}

fn is_paid(code: &str) -> bool {
    ["ORDERPAID", "ORDER_PAID"].contains(&code)
}

fn is_absent(code: &str) -> bool {
    ["ORDER_NOT_EXIST", "ORDERNOTEXIST", "RESOURCE_NOT_EXISTS"].contains(&code)
}

/// The text that a request's signature covers.
fn request_text(call: &WireCall, time: u64, nonce: &str) -> Vec<u8> {
    debug_assert!([Method::GET, Method::POST].contains(&call.method), "{:?}", call.method);
    let head = format!("{}\n{}\n{time}\n{nonce}\n", call.method, call.target);
    [head.as_bytes(), &call.body, b"\n"].concat()
}
