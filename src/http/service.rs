//! The service behind the listeners: its parts, and the steps that every request begins with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Request, StatusCode};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::info;
use ulid::Ulid;

use super::auth::{Claims, Owner, Role, Verifier};
use super::channel_sums::ChannelSums;
use super::kept_notices::KeptNotices;
use super::readiness::{Part, Readiness};
use super::refusal::{Refusal, invalid};
use super::request::{BodyError, Call, is_json, parse, read_body};
use super::request_id::{X_REQUEST_ID, request_id};
use crate::adapters::funding::Funding;
use crate::adapters::spot::Spot;
use crate::alert::{Alert, alert_about};
use crate::approval::Action;
use crate::audit::frequency::Frequency;
use crate::audit::halt::Halt;
use crate::audit::rounds::Check;
use crate::audit::totals;
use crate::channels::open::OpenChannels;
use crate::checkpointer;
use crate::clock::Clock;
use crate::config::holds::Purposes;
use crate::config::participants::ParticipantKind;
use crate::coordinator::recharges::Recharges;
use crate::coordinator::{Coordinator, alert_shortage};
use crate::entropy::Entropy;
use crate::events::Hub;
use crate::postgres::admin::Admin;
use crate::postgres::database::Database;
use crate::postgres::flight_store::FlightStore;
use crate::postgres::reads::Reads;
use crate::quota::Quotas;
use crate::telemetry::Metrics;
use crate::till::Till;
use crate::till::bills::Bills;
use crate::transactions::Transactions;
use domain::account::UserId;
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::Direction;

/// Everything behind the listeners, by the part that a handler works with.
pub struct Service {
    /// Receives requests: ids, tokens, bodies.
    pub intake: Intake,
    /// Transfers and their stores.
    pub transfers: Transfers,
    /// Streams of events.
    pub streams: Streams,
    /// Actions that need two operators.
    pub approvals: Approvals,
    /// The Spot accounts, for operators.
    pub spot: Arc<Spot>,
    /// Transactions of services.
    pub transactions: TransactionDesk,
    /// Recharges; `None`: they are off.
    pub recharges: Option<RechargeDesk>,
    /// Parts that only operators' routes use.
    pub operations: Operations,
}

impl Service {
    /// Whether recharges must be recovered behind a restore.
    pub fn needs_recover(&self) -> bool {
        self.recharges.as_ref().is_some_and(|desk| desk.recharges.needs_recover())
    }
}

/// Receives requests: gives each an id, checks its token and reads its body.
pub struct Intake {
    /// Checks tokens.
    pub verifier: Arc<Verifier>,
    /// Time of requests and of their ids.
    pub clock: Arc<dyn Clock>,
    /// Chance in request ids.
    pub entropy: Mutex<Box<dyn Entropy>>,
    /// Limits of a body.
    pub limits: BodyLimits,
}

/// Limits of a request's body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The largest body, bytes; a larger one is answered 413.
    pub bytes_max: usize,
    /// Time for a body to arrive; then 408.
    pub read_timeout: Duration,
}

impl BodyLimits {
    /// A request's body within these limits. Its errors are those of [`Intake::body`].
    pub(super) async fn body(self, call: Call) -> Result<Bytes, Refusal> {
        if !is_json(call.request.headers().get(CONTENT_TYPE)) {
            let refusal = invalid("The content type must be application/json.");
            return Err(refusal.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let BodyLimits { bytes_max, read_timeout } = self;
        let body = read_body(call.request.into_body(), bytes_max, read_timeout).await;
        body.map_err(|error| {
            let status = match &error {
                BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                BodyError::Aborted(_) => StatusCode::BAD_REQUEST,
                BodyError::Timeout => StatusCode::REQUEST_TIMEOUT,
            };
            invalid(format!("{error}.")).with_status(status)
        })
    }
}

/// Accepts transfers, reads them and moves them on.
pub struct Transfers {
    /// Accepts and moves transfers.
    pub coordinator: Arc<Coordinator<Spot, Funding<FlightStore<Database>>>>,
    /// Reads PostgreSQL.
    pub reads: Reads,
    /// Writes the changes of operators to PostgreSQL.
    pub admin: Admin,
    /// Set while nothing new may begin.
    pub halt: Arc<Halt>,
    /// How much each user may transfer.
    pub quotas: Quotas,
    /// How often each user transfers.
    pub frequency: Mutex<Frequency>,
    /// Time of waits.
    pub clock: Arc<dyn Clock>,
    /// Changes, or loses its sender, when the server stops: handlers that wait answer then.
    pub stopping: watch::Receiver<()>,
    /// Limits of one transfer.
    pub limits: TransferLimits,
}

/// Limits of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// How long POST waits for a final state.
    pub transfer_wait: Duration,
    /// How long POST waits for the transfer to be accepted.
    pub accept_wait: Duration,
    /// The longest wait of GET for a final state; a longer `wait_ms` is cut to it.
    pub end_wait_max: Duration,
    /// A transfer that is under way for longer is stuck, milliseconds.
    pub stuck_ms: u64,
    /// The largest amount, smallest units.
    pub units_max: u64,
    /// Whether a transfer without an idempotency key is refused.
    pub cid_required: bool,
}

/// Takes the wishes of users to recharge, the callbacks of channels, and operators' requests.
pub struct RechargeDesk {
    /// Writes orders and payments.
    pub recharges: Arc<Recharges<Spot, Funding<FlightStore<Database>>>>,
    /// The channels.
    pub channels: Arc<OpenChannels>,
    /// Drives orders at their channels.
    pub till: Till,
    /// The accounts of the channels.
    pub sums: ChannelSums,
    /// Callbacks that are kept for operators.
    pub notices: KeptNotices,
    /// The bills of the channels.
    pub bills: Bills,
    /// How long POST waits for the channel.
    pub create_wait: Duration,
    /// The most open orders of all users.
    pub open_max: u64,
    /// The most new orders of one user a minute.
    pub creates_per_minute_max: u32,
}

/// Takes the requests of services, and of operators about them.
pub struct TransactionDesk {
    /// The worker of transactions.
    pub worker: Transactions,
    /// The participants that a request may name.
    pub participants: BTreeMap<String, ParticipantKind>,
    /// The purposes for which money is frozen.
    pub purposes: Purposes,
    /// The followers that a request may name.
    pub followers: BTreeSet<String>,
    /// The longest time in which a transaction may stay undecided, milliseconds.
    pub open_max_ms: u64,
    /// The services that may move money from and to the outside.
    pub outside_owners: BTreeSet<String>,
}

/// After so long without an event, a stream sends an empty line.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat(pub Duration);

/// Serves streams of events.
pub struct Streams {
    /// Where events are followed; `None` if events are turned off.
    pub hub: Option<Arc<Hub>>,
    /// Shards of accounts.
    pub shards: usize,
    /// When a stream shows that it is alive.
    pub heartbeat: Heartbeat,
    /// Reads events that a stream has missed.
    pub reads: Reads,
    /// Time of heartbeats and of a token's end.
    pub clock: Arc<dyn Clock>,
    /// Checks the stream's token again and again.
    pub verifier: Arc<Verifier>,
}

/// Parts that only operators' routes use.
pub struct Operations {
    /// The database's name, and whether `serve --dev` made it.
    pub database: (String, bool),
    /// UBSCore's gauges.
    pub engine: Mutex<engine::Handle>,
    /// Requests snapshots.
    pub snapshots: checkpointer::Requests,
    /// Has both stores compared now.
    pub check: Check,
    /// Adds up each asset.
    pub totals: totals::Reader,
    /// Counters and histograms.
    pub metrics: &'static Metrics,
    /// With a venue, the segments of the log stay on the disk for ever.
    pub keeps_postings: bool,
}

/// Actions that need two operators.
#[derive(Debug)]
pub struct Approvals {
    /// The actions.
    pub required: Vec<Action>,
    /// The time in which a request may be approved and carried out.
    pub expires_after: Duration,
    /// Held while an action is carried out.
    pub carrying_out: tokio::sync::Mutex<()>,
}

impl Approvals {
    /// Whether an action needs two operators.
    pub fn need(&self, action: Action) -> bool {
        self.required.contains(&action)
    }
}

/// The caller of a request, by its token.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The token's user.
    pub user: UserId,
    /// The rights beyond the user's own money.
    pub role: Option<Role>,
    /// When the token ends, seconds since the Unix epoch.
    pub expires_s: u64,
}

impl Caller {
    /// Whether the caller may read other users' data.
    pub fn sees_everyone(self) -> bool {
        match self.role {
            Some(Role::Admin | Role::Viewer) => true,
            Some(Role::Venue(_) | Role::Service(_)) | None => false,
        }
    }

    /// Whether the caller may change nothing.
    pub fn is_read_only(self) -> bool {
        self.role == Some(Role::Viewer)
    }
}

impl Intake {
    /// Gives the request an id: the client's, if it is valid.
    pub fn receive(&self, request: Request<Incoming>) -> Call {
        let given = request_id(request.headers().get(X_REQUEST_ID)).map(str::to_owned);
        let made = || Ulid::from_parts(self.clock.now_ns() / 1_000_000, self.entropy.lock().u128());
        let request_id = given.unwrap_or_else(|| made().to_string());
        let (received_ns, clock) = (self.clock.monotonic_ns(), Arc::clone(&self.clock));
        Call { request_id, request, received_ns, clock }
    }

    /// The caller of a request.
    ///
    /// # Errors
    /// UNAUTHORIZED, for every error of the token; FORBIDDEN for the token of a venue or a service.
    pub fn authenticate(&self, call: &Call) -> Result<Caller, Refusal> {
        let claims = self.claims(call)?;
        if let Some(Role::Venue(_) | Role::Service(_)) = claims.role {
            return Err(Code::Forbidden.into());
        }
        let user = UserId::new(claims.user_id).ok_or(Code::Unauthorized)?;
        Ok(Caller { user, role: claims.role, expires_s: claims.expires_s })
    }

    /// The service that calls, the owner of its transactions.
    ///
    /// # Errors
    /// UNAUTHORIZED, for every error of the token; FORBIDDEN for every other token.
    pub fn authenticate_service(&self, call: &Call) -> Result<Owner, Refusal> {
        match self.claims(call)?.role {
            Some(Role::Service(owner)) => Ok(owner),
            _ => Err(Code::Forbidden.into()),
        }
    }

    /// The claims of a request's token.
    pub(super) fn claims(&self, call: &Call) -> Result<Claims, Refusal> {
        let mut headers = call.request.headers().get_all(AUTHORIZATION).iter();
        // Two tokens are refused: a proxy and this process could each trust a different one.
        let header = match (headers.next(), headers.next()) {
            (Some(header), None) => header.to_str().ok(),
            _ => None,
        };
        self.verifier.verify(header, self.clock.now_s()).map_err(|reason| {
            info!(%reason, "token refused");
            Refusal::from(Code::Unauthorized)
        })
    }

    /// The caller, if it is an operator with the right to change.
    ///
    /// # Errors
    /// UNAUTHORIZED; FORBIDDEN without the role.
    pub fn authenticate_admin(&self, call: &Call) -> Result<Caller, Refusal> {
        let caller = self.authenticate(call)?;
        if caller.role == Some(Role::Admin) { Ok(caller) } else { Err(Code::Forbidden.into()) }
    }

    /// The caller, if it is an operator with the right to read all users' data.
    ///
    /// # Errors
    /// UNAUTHORIZED; FORBIDDEN without a role.
    pub fn authenticate_viewer(&self, call: &Call) -> Result<Caller, Refusal> {
        let caller = self.authenticate(call)?;
        if caller.sees_everyone() { Ok(caller) } else { Err(Code::Forbidden.into()) }
    }

    /// The request's body.
    ///
    /// # Errors
    /// INVALID_REQUEST: not JSON by its type (415), too large (413), incomplete (400), too slow
    /// (408).
    pub fn body(&self, call: Call) -> impl Future<Output = Result<Bytes, Refusal>> + use<> {
        // The future itself: one that awaits it would be as large again.
        self.limits.body(call)
    }

    /// The request's body, read as JSON into a struct.
    ///
    /// # Errors
    /// INVALID_REQUEST; the sentence names the error.
    pub async fn json_body<T: DeserializeOwned>(&self, call: Call) -> Result<T, Refusal> {
        parse(&self.body(call).await?)
    }
}

/// The longest wait for PostgreSQL; then it counts as not answering.
const PING_MAX: Duration = Duration::from_secs(2);

impl Transfers {
    /// Checks every part that a new transfer needs. A lasting shortage raises an alert.
    pub async fn readiness(&self) -> Readiness {
        let halt = self.halt.reason().map(|reason| format!("Halted: {reason}"));
        let postgres = tokio::select! {
            pong = self.reads.ping() => pong.is_ok(),
            () = self.clock.sleep(PING_MAX) => false,
        };
        let postgres = (!postgres).then(|| "PostgreSQL does not answer. Try again.".to_owned());
        let shortage = self.coordinator.shortage();
        let mut parts = vec![
            Part::new("recovery", Code::SystemError, None),
            Part::new("halt", Code::ServiceHalted, halt),
            Part::new("postgres", Code::SystemError, postgres),
        ];
        let lasting = Shortage::ALL.into_iter().filter(|shortage| shortage.is_lasting());
        parts.extend(lasting.map(|lasting| Part::of_shortage(lasting, shortage == Some(lasting))));
        parts.push(Part::new("pauses", Code::TransferNotAllowed, self.all_paused()));
        if let Some(shortage) = shortage {
            alert_shortage(shortage);
        }
        Readiness::of(parts)
    }

    /// The problem if pauses refuse every transfer.
    fn all_paused(&self) -> Option<String> {
        let (catalog, pauses) = (self.reads.catalog(), self.reads.pauses());
        let assets = catalog.all();
        let paused =
            |direction| assets.iter().all(|asset| pauses.covering(direction, asset.id).is_some());
        let all = !assets.is_empty() && Direction::ALL.into_iter().all(paused);
        all.then(|| "Every direction of every asset is paused.".to_owned())
    }

    /// Counts a requested transfer. An abnormal number raises an alert.
    pub fn count(&self, user: UserId) {
        let counted = self.frequency.lock().count(user, self.clock.monotonic_ns());
        if let Some(recent) = counted {
            let what = format_args!("user {user} requested {recent} transfers in a minute");
            alert_about(Alert::UserFrequencyAbnormal, &user, what);
        }
    }
}
