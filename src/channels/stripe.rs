//! Stripe, PaymentIntents: the payer fills in a form with a client secret.
//!
//! Source: `docs.stripe.com/api`. An order may have more than one intent, since a create without an
//! answer is tried under a second key. Answers are vouched for by TLS.

mod bill;
mod event;
pub mod signature;

use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use self::signature::Signing;
use super::wire::{Wire, WireAnswer, WireCall, fetch};
use super::{
    Acknowledgement, BillAsk, CallbackEnd, Channel, ChannelKeyError, ChannelLimits, CreateAsk,
    Looked, OrderAsk, RefundAsk, Renewal, asked, check_encoding, header, json, now, refund_once,
};
use crate::clock::Clock;
use crate::config::secret::Secret;
use crate::recharge::answers::{
    BillLine, Billed, ChannelDoubt, Closing, Created, Pay, PayKind, Queried, Refunded, Rejected,
    ReturnedSum,
};
use crate::recharge::facts::{Facts, Notice};

/// The metadata with our number of an order.
const ORDER: &str = "ubscore_order";
/// The metadata with the proof of an order.
const PROOF: &str = "ubscore";
/// The metadata with our number of a refund.
const RETURN: &str = "ubscore_return";

/// The version of the API that the bodies are written for.
const VERSION: &str = "2024-06-20";

/// A create is repeated under its first key for so long, seconds. Behind it the key may repeat a
/// stored 5xx, and a search finds an intent that was made.
const FIRST_KEY_S: i64 = 60;

/// The most items of one page.
const PAGE: usize = 100;

/// The most pages of refunds of one payment: 1,000 refunds. With more, nothing is known of ours.
const REFUND_PAGES_MAX: usize = 10;

/// The code of a refund of a payment that is wholly refunded, by us or by another.
const ALREADY_REFUNDED: &str = "charge_already_refunded";

/// An account of Stripe.
#[derive(Clone, Debug)]
pub struct StripeSettings {
    /// The key of the API.
    pub api_key: Secret,
    /// The secret of callbacks, and the one before it during a change.
    pub webhook_secrets: Vec<Secret>,
    /// The connected account; `None`: the key's own.
    pub account: Option<String>,
    /// Whether money is real.
    pub livemode: bool,
}

/// The adapter of Stripe.
pub struct Stripe {
    api_key: Secret,
    signing: Signing,
    account: Option<String>,
    livemode: bool,
    wire: Arc<dyn Wire>,
    clock: Arc<dyn Clock>,
}

impl Stripe {
    /// The adapter of one account.
    ///
    /// # Errors
    /// [`ChannelKeyError`]: a secret is empty, or there is none.
    pub fn new(
        settings: &StripeSettings,
        wire: Arc<dyn Wire>,
        clock: Arc<dyn Clock>,
    ) -> Result<Stripe, ChannelKeyError> {
        if settings.api_key.expose().is_empty() {
            return Err(ChannelKeyError::Empty("api_key_file"));
        }
        Ok(Stripe {
            api_key: settings.api_key.clone(),
            signing: Signing::new(&settings.webhook_secrets)?,
            account: settings.account.clone(),
            livemode: settings.livemode,
            wire,
            clock,
        })
    }

    /// A request with our key, sent.
    fn ask(&self, call: WireCall) -> Result<WireAnswer, ChannelDoubt> {
        let mut call = call
            .with("authorization", format!("Bearer {}", self.api_key.expose()))
            .with("stripe-version", VERSION);
        if let Some(account) = &self.account {
            call = call.with("stripe-account", account);
        }
        let answer = fetch(&*self.wire, &call)?;
        match answer.status {
            401 | 403 => Err(ChannelDoubt::OwnKey),
            // 409: another request with the same key is on its way.
            status if status == 409 || status == 429 || status >= 500 => {
                Err(ChannelDoubt::Status(status))
            }
            _ => Ok(answer),
        }
    }

    /// The object of a 200, of our mode; a 4xx as its error.
    fn object(&self, call: WireCall) -> Result<Value, Problem> {
        let answer = self.ask(call).map_err(Problem::Doubt)?;
        let unreadable = Problem::Doubt(ChannelDoubt::Unreadable);
        let Some(value) = json::object(&answer.body) else { return Err(unreadable) };
        if answer.status == 200 {
            return Ok(value);
        }
        if !(400..500).contains(&answer.status) {
            return Err(Problem::Doubt(ChannelDoubt::Status(answer.status)));
        }
        let Some(kind) = json::text(&value, "/error/type") else { return Err(unreadable) };
        let code = json::text(&value, "/error/code").unwrap_or(kind).to_owned();
        let state = json::text(&value, "/error/payment_intent/status").map(str::to_owned);
        Err(Problem::Refusal { kind: kind.to_owned(), code, state })
    }

    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Problem> {
        let target =
            if query.is_empty() { path.to_owned() } else { format!("{path}?{}", form(query)) };
        self.object(WireCall::get(target))
    }

    fn post(&self, path: &str, fields: &[(&str, &str)], key: &str) -> Result<Value, Problem> {
        let body = form(fields).into_bytes();
        let call = WireCall::post(path.to_owned(), "application/x-www-form-urlencoded", body);
        self.object(if key.is_empty() { call } else { call.with("idempotency-key", key) })
    }

    /// The intents that name an order in their metadata.
    fn found(&self, merchant_no: &str) -> Result<Vec<Value>, ChannelDoubt> {
        let query = format!("metadata['{ORDER}']:'{merchant_no}'");
        let fields = [("query", query.as_str()), ("expand[]", "data.latest_charge")];
        let list = self.get("/v1/payment_intents/search", &fields).map_err(Problem::doubt)?;
        let intents = list.get("data").and_then(Value::as_array);
        let intents = intents.filter(|_| list.get("has_more") != Some(&Value::Bool(true)));
        let ours = |intent: &Value| self.is_ours(intent, merchant_no);
        match intents {
            Some(intents) if intents.iter().all(ours) => Ok(intents.clone()),
            _ => Err(ChannelDoubt::Unreadable),
        }
    }

    /// Every intent of an order: those that were noted, and those that a search finds.
    fn intents(&self, order: &OrderAsk<'_>) -> Result<Vec<Value>, ChannelDoubt> {
        let mut intents = self.found(order.merchant_no)?;
        for reference in order.references {
            let known = |intent: &Value| json::text(intent, "/id") == Some(reference);
            if intents.iter().any(known) {
                continue;
            }
            let path = format!("/v1/payment_intents/{}", encoded(reference));
            let intent = self.get(&path, &[("expand[]", "latest_charge")]);
            let intent = intent.map_err(Problem::doubt)?;
            if !known(&intent) || !self.is_ours(&intent, order.merchant_no) {
                return Err(ChannelDoubt::Unreadable);
            }
            intents.push(intent);
        }
        Ok(intents)
    }

    /// Whether an intent belongs to an order, in our mode.
    fn is_ours(&self, intent: &Value, merchant_no: &str) -> bool {
        intent.get("livemode").and_then(Value::as_bool) == Some(self.livemode)
            && event::metadata(intent, ORDER) == Some(merchant_no)
    }

    /// An intent as the end of `create`.
    fn created(&self, intent: &Value, ask: &CreateAsk<'_>) -> Created {
        let read = || {
            let same = self.is_ours(intent, ask.merchant_no)
                && json::amount(intent, "/amount")? == ask.minor_units
                && json::currency(intent, "/currency")? == ask.currency;
            let reference = json::text(intent, "/id")?.to_owned();
            let value = json::text(intent, "/client_secret")?.to_owned();
            let pay = Pay { kind: PayKind::ClientSecret, value, expires_at: None };
            same.then_some(Created::Created { reference, pay })
        };
        read().unwrap_or(Created::Unknown(ChannelDoubt::Unreadable))
    }

    /// Cancels one intent.
    fn cancel(&self, id: &str) -> Closing {
        let path = format!("/v1/payment_intents/{}/cancel", encoded(id));
        match self.post(&path, &[], "") {
            Ok(intent) if json::text(&intent, "/status") == Some("canceled") => Closing::Closed,
            Ok(_) => Closing::Unknown(ChannelDoubt::Unreadable),
            Err(Problem::Refusal { state: Some(state), .. }) if state == "canceled" => {
                Closing::Closed
            }
            Err(Problem::Refusal { state: Some(state), .. }) if state == "succeeded" => {
                Closing::Paid
            }
            Err(problem) => Closing::Unknown(problem.doubt()),
        }
    }

    /// Looks for a refund by our number, through all refunds of its payment.
    fn look(&self, ask: &RefundAsk<'_>) -> Looked {
        let mut refused = None;
        let found = self.refunds(ask, |item| {
            if event::metadata(item, RETURN) != Some(ask.return_no) {
                return None;
            }
            match self.refunded(item, ask) {
                // If two carry our number, one that failed does not hide money that left.
                end @ Refunded::Refused(_) => {
                    refused = Some(end);
                    None
                }
                end => Some(end),
            }
        })?;
        Ok(found.or(refused))
    }

    /// Passes all refunds of a payment, until one of them is `found`.
    fn refunds<R>(
        &self,
        ask: &RefundAsk<'_>,
        mut found: impl FnMut(&Value) -> Option<R>,
    ) -> Result<Option<R>, ChannelDoubt> {
        let (limit, mut after) = (PAGE.to_string(), String::new());
        for _ in 0..REFUND_PAGES_MAX {
            let mut fields = vec![("payment_intent", ask.trade_no), ("limit", limit.as_str())];
            if !after.is_empty() {
                fields.push(("starting_after", &after));
            }
            let page = self.get("/v1/refunds", &fields).map_err(Problem::doubt)?;
            let items = page.get("data").and_then(Value::as_array);
            let items = items.ok_or(ChannelDoubt::Unreadable)?;
            if let Some(end) = items.iter().find_map(&mut found) {
                return Ok(Some(end));
            }
            match behind(&page, items, &after)? {
                Some(last) => after = last,
                None => return Ok(None),
            }
        }
        Err(ChannelDoubt::Code("TOO_MANY_REFUNDS".to_owned()))
    }

    /// Asks for a refund, without a look for an earlier one.
    fn post_refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        let (amount, no) = (ask.minor_units.to_string(), format!("metadata[{RETURN}]"));
        let fields = [("payment_intent", ask.trade_no), ("amount", &amount), (&no, ask.return_no)];
        match self.post("/v1/refunds", &fields, ask.return_no) {
            Ok(refund) => self.refunded(&refund, ask),
            // A short balance of ours is no refusal: the same refund may pass later.
            Err(Problem::Refusal { kind, code, .. })
                if kind == "invalid_request_error" && !code.contains("balance") =>
            {
                Refunded::Refused(code)
            }
            Err(problem) => Refunded::Unknown(problem.doubt()),
        }
    }

    /// A refund as its meaning.
    fn refunded(&self, refund: &Value, ask: &RefundAsk<'_>) -> Refunded {
        let ours = event::metadata(refund, RETURN) == Some(ask.return_no)
            && json::amount(refund, "/amount") == Some(ask.minor_units);
        match json::text(refund, "/status") {
            Some("succeeded") if ours => Refunded::Done,
            Some("pending") if ours => Refunded::UnderWay { is_stuck: false },
            Some("requires_action") if ours => Refunded::UnderWay { is_stuck: true },
            Some(status @ ("failed" | "canceled")) if ours => Refunded::Refused(status.to_owned()),
            _ => Refunded::Unknown(ChannelDoubt::Unreadable),
        }
    }
}

/// The failure of a call.
enum Problem {
    /// Nothing is known.
    Doubt(ChannelDoubt),
    /// The channel refuses the request.
    Refusal {
        kind: String,
        code: String,
        /// The state of the intent that it is about.
        state: Option<String>,
    },
}

impl Problem {
    fn doubt(self) -> ChannelDoubt {
        match self {
            Problem::Doubt(doubt) => doubt,
            Problem::Refusal { code, .. } => ChannelDoubt::Code(code),
        }
    }
}

impl Channel for Stripe {
    fn limits(&self) -> ChannelLimits {
        ChannelLimits {
            close_after: Duration::ZERO,
            // An idempotency key is kept for a day at least.
            expiry_max: Duration::from_secs(23 * 3600),
            proof_bytes_max: 500,
            ends_payment: false,
        }
    }

    fn create(&self, ask: &CreateAsk<'_>) -> Created {
        let age_s = now(&*self.clock).as_second() - ask.first_tried_at.as_second();
        let mut key = ask.merchant_no.to_owned();
        if age_s > FIRST_KEY_S {
            match self.found(ask.merchant_no) {
                Ok(intents) => match intents.first() {
                    Some(intent) => return self.created(intent, ask),
                    None => key.push_str(":2"),
                },
                Err(doubt) => return Created::Unknown(doubt),
            }
        }
        let (amount, currency) = (ask.minor_units.to_string(), ask.currency.to_lowercase());
        let (order, proof) = (format!("metadata[{ORDER}]"), format!("metadata[{PROOF}]"));
        let fields = [
            ("amount", amount.as_str()),
            ("currency", &currency),
            ("description", ask.description),
            ("automatic_payment_methods[enabled]", "true"),
            (&order, ask.merchant_no),
            (&proof, ask.proof),
        ];
        match self.post("/v1/payment_intents", &fields, &key) {
            Ok(intent) => self.created(&intent, ask),
            Err(Problem::Refusal { kind, code, .. }) if kind == "invalid_request_error" => {
                Created::Refused(code)
            }
            Err(problem) => Created::Unknown(problem.doubt()),
        }
    }

    fn callback(
        &self,
        head: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<Vec<Notice>, Rejected> {
        check_encoding(head)?;
        let text = header(head, "stripe-signature")?.ok_or(Rejected::Header)?;
        self.signing.verify(text, body, now)?;
        let event = json::object(body).ok_or(Rejected::Malformed)?;
        if event.get("livemode").and_then(Value::as_bool) != Some(self.livemode) {
            return Err(Rejected::Mode);
        }
        if json::text(&event, "/account") != self.account.as_deref() {
            return Err(Rejected::Merchant);
        }
        event::notices(&event).ok_or(Rejected::Malformed)
    }

    fn query(&self, order: &OrderAsk<'_>) -> Queried {
        let intents = match self.intents(order) {
            Ok(intents) => intents,
            Err(doubt) => return Queried::Unknown(doubt),
        };
        let has = |intent: &&Value, status: &str| json::text(intent, "/status") == Some(status);
        let paid: Option<Vec<Facts>> =
            intents.iter().filter(|intent| has(intent, "succeeded")).map(event::facts).collect();
        match paid {
            None => Queried::Unknown(ChannelDoubt::Unreadable),
            Some(paid) if !paid.is_empty() => Queried::Paid(paid),
            _ if intents.is_empty() => Queried::Absent,
            _ if intents.iter().all(|intent| has(&intent, "canceled")) => Queried::Closed,
            _ => Queried::Open,
        }
    }

    fn close(&self, order: &OrderAsk<'_>) -> Closing {
        let intents = match self.intents(order) {
            Ok(intents) => intents,
            Err(doubt) => return Closing::Unknown(doubt),
        };
        let mut end = Closing::Absent;
        for intent in &intents {
            let Some(id) = json::text(intent, "/id") else {
                return Closing::Unknown(ChannelDoubt::Unreadable);
            };
            // Each of them, also behind one that is paid: a second one could be paid too.
            match (self.cancel(id), &end) {
                (unknown @ Closing::Unknown(_), _) => return unknown,
                (Closing::Paid, _) | (_, Closing::Paid) => end = Closing::Paid,
                _ => end = Closing::Closed,
            }
        }
        end
    }

    fn refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        match refund_once(|| self.look(ask), || self.post_refund(ask)) {
            // The money is back, and not by us as far as the channel shows. A person must look.
            Refunded::Refused(code) if code == ALREADY_REFUNDED => {
                Refunded::Unknown(ChannelDoubt::Code(code))
            }
            end => end,
        }
    }

    fn query_refund(&self, ask: &RefundAsk<'_>) -> Refunded {
        asked(self.look(ask))
    }

    fn returned(&self, ask: &RefundAsk<'_>) -> ReturnedSum {
        let mut sum = 0_i64;
        let walked = self.refunds(ask, |item| {
            let is_own = event::metadata(item, RETURN) == Some(ask.return_no);
            let has_gone =
                !matches!(json::text(item, "/status"), None | Some("failed" | "canceled"));
            let units = json::amount(item, "/amount").filter(|_| has_gone && !is_own);
            sum = sum.saturating_add(units.unwrap_or(0));
            None::<()>
        });
        walked.map_or_else(ReturnedSum::Unknown, |_| ReturnedSum::Sum(sum))
    }

    fn bill(&self, ask: &BillAsk, lines: &mut dyn FnMut(BillLine)) -> Billed {
        bill::fetch_day(self, ask, lines)
    }

    fn renew(&self) -> Renewal {
        // Its secrets stand in the configuration alone.
        Renewal::NoList
    }

    fn keys_end(&self) -> Option<Timestamp> {
        None
    }

    fn acknowledge(&self, end: CallbackEnd) -> Acknowledgement {
        Acknowledgement::of(end)
    }
}

/// All but letters, digits and the marks that need no encoding (RFC 3986, unreserved).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The number that the next page of a list begins behind; `None`: there is none. `after`: that of
/// this page.
fn behind(page: &Value, items: &[Value], after: &str) -> Result<Option<String>, ChannelDoubt> {
    match page.get("has_more").and_then(Value::as_bool) {
        Some(false) => return Ok(None),
        Some(true) => {}
        None => return Err(ChannelDoubt::Unreadable),
    }
    let last = items.last().and_then(|item| json::text(item, "/id"));
    // A page that leads back to itself would never end.
    let last = last.filter(|last| *last != after).ok_or(ChannelDoubt::Unreadable)?;
    Ok(Some(last.to_owned()))
}

/// A text as a part of a path or form.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Fields in the form of a query or a posted form.
fn form(fields: &[(&str, &str)]) -> String {
    let field = |(name, value): &(&str, &str)| format!("{}={}", encoded(name), encoded(value));
    fields.iter().map(field).collect::<Vec<_>>().join("&")
}
