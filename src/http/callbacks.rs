//! The listener of payment channels: `POST /callbacks/v1/{channel}`, and nothing else.
//!
//! A callback is believed by its signature alone: it is verified before anything in it is read, and
//! before PostgreSQL is asked. Its decision is a task of its own, which goes on when the channel
//! hangs up or the answer's time is over: the channel sends it again, and is answered as decided.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{Instrument, debug, error, info, warn};

use super::answer::{Answer, text};
use super::kept_notices::Letter;
use super::refusal::{Outcome, RETRY_AFTER_S};
use super::request::Call;
use super::route::{Matched, Route, Routes};
use super::service::{BodyLimits, RechargeDesk, Service};
use crate::channels::open::OpenChannel;
use crate::channels::{CallbackEnd, Renewal};
use crate::clock::NS_PER_S;
use crate::config::Config;
use crate::coordinator::Rejection;
use crate::coordinator::recharges::returns::TakingAnswer;
use crate::recharge::RechargeId;
use crate::recharge::answers::Rejected;
use crate::recharge::decide::{PaymentDecision, PaymentTold};
use crate::recharge::facts::{Facts, Notice, Taking};
use crate::recharge::payment::{Disposition, RechargePayment, SeenBy};
use crate::telemetry::callbacks::{callback, expect_callbacks};
use domain::code::Code;

/// The time from the head of a callback to its answer. Channels wait for five seconds.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// The pause between two renewals of a channel's keys that callbacks ask for, seconds. The adapter
/// fetches once a minute: with its pause here too, a new key could be unknown for two.
const RENEW_EVERY_S: u64 = 10;

/// The outcomes of callbacks beside the reasons of rejections, as they are counted.
const OUTCOMES: [&str; 6] = ["success", "foreign", "missing", "contradiction", "later", "busy"];

static ROUTES: LazyLock<Routes<()>> = LazyLock::new(|| {
    const TABLE: &[Route<()>] =
        &[Route { pattern: "/callbacks/v1/{channel}", method: Method::POST, route: () }];
    Routes::new(TABLE)
});

/// The parts behind the listener.
pub struct CallbackDoor {
    service: Arc<Service>,
    limits: BodyLimits,
    in_flight: Arc<Semaphore>,
    /// By channel, the monotonic second of the last renewal that a callback has asked for.
    renewed_s: Mutex<HashMap<String, u64>>,
}

impl CallbackDoor {
    /// A door to the desk of a service.
    pub fn new(config: &Config, service: Arc<Service>) -> CallbackDoor {
        for channel in service.recharges.iter().flat_map(|desk| desk.channels.all()) {
            let reasons = Rejected::ALL.into_iter().map(Rejected::name);
            for outcome in OUTCOMES.into_iter().chain(reasons) {
                expect_callbacks(&channel.terms.name, outcome);
            }
        }
        CallbackDoor {
            service,
            limits: BodyLimits::of_callbacks(config),
            in_flight: Arc::new(Semaphore::new(config.callbacks.in_flight_max)),
            renewed_s: Mutex::default(),
        }
    }

    /// Takes one callback of a channel.
    async fn take(self: Arc<Self>, name: &str, call: Call) -> Outcome {
        let desk = self.service.recharges.as_ref();
        let channel = desk.and_then(|desk| desk.channels.get(name)).ok_or(Code::NotFound)?;
        let channel = Arc::clone(channel);
        let clock = Arc::clone(&self.service.intake.clock);
        let late = clock.sleep(ANSWER_WITHIN);
        let request_id = call.request_id.clone();
        let head = call.request.headers().clone();
        let body = self.limits.body(call).await?;
        let Ok(place) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            callback(name, "busy");
            return Ok(acknowledged(&channel, CallbackEnd::Later, &request_id));
        };
        let notices = match self.verified(&channel, &head, &body) {
            Ok(notices) => notices,
            Err(rejected) => {
                let end = CallbackEnd::Rejected(rejected);
                return Ok(acknowledged(&channel, end, &request_id));
            }
        };
        let (door, of) = (Arc::clone(&self), Arc::clone(&channel));
        let letter = Letter { head, body };
        let deciding = async move {
            let end = door.decide(&of, notices, &letter).await;
            drop(place);
            end
        };
        let deciding = tokio::spawn(deciding.in_current_span());
        let end = tokio::select! {
            biased;
            ended = deciding => ended.unwrap_or_else(|error| {
                error!(channel = name, %error, "the decision of a callback broke");
                CallbackEnd::Later
            }),
            () = late => {
                warn!(channel = name, "a callback is not decided in time; it goes on");
                callback(name, "later");
                CallbackEnd::Later
            }
        };
        Ok(acknowledged(&channel, end, &request_id))
    }

    /// The notices of a callback that is believed.
    fn verified(
        &self,
        channel: &Arc<OpenChannel>,
        head: &HeaderMap,
        body: &[u8],
    ) -> Result<Vec<Notice>, Rejected> {
        let name = &channel.terms.name;
        let now_ns = i128::from(self.service.intake.clock.now_ns());
        let now = Timestamp::from_nanosecond(now_ns).expect("before the year 9999");
        let verified = channel.channel.callback(head, body, now);
        if let Err(rejected) = verified {
            callback(name, rejected.name());
            info!(channel = name, reason = rejected.name(), "a callback is not believed");
            if rejected == Rejected::Serial && self.may_renew(name) {
                let channel = Arc::clone(channel);
                // It asks the channel, and blocks. The callback comes again.
                tokio::task::spawn_blocking(move || {
                    let renewal = channel.channel.renew();
                    if renewal != Renewal::TooSoon {
                        let channel = &channel.terms.name;
                        info!(channel, ?renewal, "asked for the channel's keys");
                    }
                });
            }
        }
        verified
    }

    /// Whether keys may be renewed now: every ten seconds.
    fn may_renew(&self, name: &str) -> bool {
        let second = self.service.intake.clock.monotonic_ns() / NS_PER_S;
        let mut renewed = self.renewed_s.lock();
        match renewed.get(name) {
            Some(last) if second < last + RENEW_EVERY_S => false,
            _ => {
                renewed.insert(name.to_owned(), second);
                true
            }
        }
    }

    /// Has each notice decided, and returns the worst end. The letter is kept of one that an
    /// operator must look at.
    async fn decide(
        &self,
        channel: &OpenChannel,
        notices: Vec<Notice>,
        letter: &Letter,
    ) -> CallbackEnd {
        let desk = self.service.recharges.as_ref().expect("the listener stands before a desk");
        let mut worst = CallbackEnd::Success;
        for notice in notices {
            let mut is_held = false;
            let (end, outcome) = match &notice {
                Notice::Payment(facts) => {
                    let (end, outcome, held) = pay(desk, channel, facts).await;
                    is_held = held;
                    (end, outcome)
                }
                Notice::Hint { merchant_no } => match RechargeId::parse(merchant_no) {
                    Some(id) => {
                        desk.till.hint(id);
                        (CallbackEnd::Success, "success")
                    }
                    None => (CallbackEnd::Success, "foreign"),
                },
                Notice::Taken(taking) => {
                    let booked = desk.recharges.taken(&channel.terms, taking).await;
                    booked_as(channel, taking, booked)
                }
                Notice::GivenBack(taking) => {
                    let booked = desk.recharges.given_back(&channel.terms, taking).await;
                    booked_as(channel, taking, booked)
                }
                Notice::Nothing => (CallbackEnd::Success, "success"),
            };
            callback(&channel.terms.name, outcome);
            if let (Some(trade_no), Some(kept)) = (trade_no(&notice), kept_as(end, is_held)) {
                desk.notices.keep(&channel.terms.name, trade_no, kept, letter);
            }
            if rank(end) > rank(worst) {
                worst = end;
            }
        }
        worst
    }
}

/// The payment that a notice is about.
fn trade_no(notice: &Notice) -> Option<&str> {
    match notice {
        Notice::Payment(facts) => Some(&facts.trade_no),
        Notice::Taken(taking) | Notice::GivenBack(taking) => Some(&taking.trade_no),
        Notice::Hint { .. } | Notice::Nothing => None,
    }
}

/// The name of the outcome for which a letter is kept; `None`: it is not kept.
fn kept_as(end: CallbackEnd, is_held: bool) -> Option<&'static str> {
    match end {
        CallbackEnd::Contradiction => Some("CONTRADICTION"),
        CallbackEnd::Missing => Some("MISSING"),
        CallbackEnd::Success if is_held => Some("HELD"),
        CallbackEnd::Success | CallbackEnd::Rejected(_) | CallbackEnd::Later => None,
    }
}

/// Answers one request of the listener.
pub async fn answer(door: Arc<CallbackDoor>, request: Request<Incoming>) -> Answer {
    let call = door.service.intake.receive(request);
    let handler = |matched: Matched<()>, call: Call| async move {
        door.take(&matched.parameters[0], call).await
    };
    ROUTES.answer(call, handler).await
}

/// The end of a callback about money that the channel has taken or given back.
fn booked_as(
    channel: &OpenChannel,
    taking: &Taking,
    booked: Result<TakingAnswer, Rejection>,
) -> (CallbackEnd, &'static str) {
    let (name, Taking { trade_no, number, .. }) = (&channel.terms.name, taking);
    match booked {
        Ok(answer) => {
            let kind = answer.row.map(|row| row.kind.name());
            info!(channel = name, trade_no, number, kind, "a fact of a channel is decided");
            told(answer.told)
        }
        Err(rejection) => {
            let code = rejection.code.name();
            warn!(channel = name, trade_no, number, code, "a fact of a channel waits");
            (CallbackEnd::Later, "later")
        }
    }
}

fn told(told: PaymentTold) -> (CallbackEnd, &'static str) {
    match told {
        PaymentTold::Success => (CallbackEnd::Success, "success"),
        PaymentTold::NotFound => (CallbackEnd::Missing, "missing"),
        PaymentTold::Conflict => (CallbackEnd::Contradiction, "contradiction"),
    }
}

/// Has a payment decided. Returns also whether it is held.
async fn pay(
    desk: &RechargeDesk,
    channel: &OpenChannel,
    facts: &Facts,
) -> (CallbackEnd, &'static str, bool) {
    let (name, trade_no) = (&channel.terms.name, &facts.trade_no);
    let order = RechargeId::parse(&facts.merchant_no);
    match desk.recharges.told(&channel.terms, facts, SeenBy::Callback).await {
        Ok(answer) if answer.decision == PaymentDecision::Foreign => {
            debug!(channel = name, trade_no, "a callback is about a foreign payment");
            (CallbackEnd::Success, "foreign", false)
        }
        Ok(answer) => {
            let recharge_id = order.map(|id| id.to_string());
            let decision = answer.decision;
            info!(channel = name, recharge_id, trade_no, ?decision, "a payment is decided");
            if let Some(id) = order.filter(|_| answer.due) {
                desk.till.look(id);
            }
            let is_held = |payment: RechargePayment| payment.disposition == Disposition::Held;
            let (end, outcome) = told(answer.told);
            (end, outcome, answer.payment.is_some_and(is_held))
        }
        Err(rejection) => {
            let (recharge_id, code) = (order.map(|id| id.to_string()), rejection.code.name());
            warn!(channel = name, recharge_id, trade_no, code, "a payment is not decided yet");
            (CallbackEnd::Later, "later", false)
        }
    }
}

/// Of several ends the worst is answered: each above success has the channel send it again.
fn rank(end: CallbackEnd) -> u8 {
    match end {
        CallbackEnd::Success => 0,
        CallbackEnd::Rejected(_) => 1,
        CallbackEnd::Missing => 2,
        CallbackEnd::Contradiction => 3,
        CallbackEnd::Later => 4,
    }
}

/// The answer in the channel's own form.
fn acknowledged(channel: &OpenChannel, end: CallbackEnd, request_id: &str) -> Answer {
    let answer = channel.channel.acknowledge(end);
    let status = StatusCode::from_u16(answer.status).expect("adapters know statuses");
    let body = Bytes::from_static(answer.body.as_bytes());
    let is_empty = body.is_empty();
    let mut answer = text(status, "application/json", body, request_id);
    if is_empty {
        answer.headers_mut().remove(hyper::header::CONTENT_TYPE);
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S.into());
    }
    answer
}
