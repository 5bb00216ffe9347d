//! Webhooks: every event posted to an endpoint of the operator's, at least once, and the events of one transfer in their order.
//!
//! What is to be delivered was made with the event, in one transaction. A task here knows what is due and what is in hand;
//! threads of its own post, so that an endpoint that hangs keeps nothing else from running and no process from ending. What
//! is not taken is tried again with back-off, which PostgreSQL remembers; after the last try it is a dead letter, and the next
//! event of its transfer is told. A try that was not written down is made again, under the same id.
//!
//! Source: Standard Webhooks 1.0 (headers, signature, ids that stay the same).

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam::channel::{Receiver, Sender, bounded};
use futures_util::future::{Either, select};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use super::{Hub, outlast, within};
use crate::clock::Clock;
use crate::config::secret::Secret;
use crate::entropy::Entropy;
use crate::postgres::events::Event;
use crate::postgres::webhooks::{Backlog, Deliveries, Due, Tried};
use crate::postgres::{Address, Error, Limits, Superseded};
use crate::release;
use crate::telemetry;
use domain::asset::Catalog;

/// The name of the one endpoint there is, in rows.
pub const ENDPOINT: &str = "default";
/// Bytes of an answer that are read: none means anything, and a connection whose answer was read can be used again.
const ANSWER_BYTES_MAX: u64 = 16_384;
/// The longest that nobody looks whether something is due.
const LOOK: Duration = Duration::from_secs(5);
/// The shortest.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// Whom to tell, and how patiently; see `[webhooks]` in the configuration.
#[derive(Clone)]
pub struct Options {
    /// PostgreSQL.
    pub target: Address,
    /// Its limits.
    pub limits: Limits,
    /// This process's incarnation.
    pub incarnation: u64,
    /// The assets.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// What an event is told as.
    pub body: fn(&Event, &Catalog) -> String,
    /// `http://` or `https://`.
    pub url: Secret,
    /// What deliveries are signed with.
    pub secret: Secret,
    /// For one try.
    pub timeout: Duration,
    /// Transfers told of at the same time.
    pub parallel: usize,
    /// Tries of one event.
    pub attempts_max: u32,
    /// The first back-off, milliseconds.
    pub backoff_base_ms: u64,
    /// The longest one.
    pub backoff_cap_ms: u64,
}

/// The secret is not one of Standard Webhooks.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `Address::validate` was not asked, or it would have said so.
    #[error("webhooks.secret")]
    Secret(#[from] standardwebhooks::WebhookError),
    /// The system gives no thread.
    #[error("start a thread")]
    Thread(#[from] io::Error),
}

/// One try.
struct Letter {
    event_id: i64,
    attempts: u32,
    body: String,
}

/// What became of it.
struct Answered {
    event_id: i64,
    attempts: u32,
    error: Option<String>,
}

/// The task that knows what is due.
pub struct Webhooks {
    options: Options,
    hub: Arc<Hub>,
    clock: Arc<dyn Clock>,
    entropy: Box<dyn Entropy>,
    letters: Sender<Letter>,
    answers: mpsc::UnboundedReceiver<Answered>,
    /// Handed to a thread, and what came of it not written down yet.
    in_hand: BTreeSet<i64>,
    /// Those of them that have been tried.
    noted: Vec<Answered>,
    /// When it is to be told at the latest how far deliveries are behind, monotonic ns.
    backlog_due_ns: u64,
    failures: u32,
}

impl Webhooks {
    /// Starts the threads that post.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        options: Options,
        hub: Arc<Hub>,
        clock: Arc<dyn Clock>,
        entropy: Box<dyn Entropy>,
    ) -> Result<Webhooks, StartError> {
        let (letters, to_post) = bounded(options.parallel);
        // As many at most as there are letters in hand.
        let (answer, answers) = mpsc::unbounded_channel();
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .user_agent(release::USER_AGENT)
            .timeout_global(Some(options.timeout))
            // A redirect would take what is signed for one address to another.
            .max_redirects(0)
            .http_status_as_error(false)
            .build()
            .into();
        for number in 0..options.parallel {
            let poster = Poster {
                agent: agent.clone(),
                url: options.url.clone(),
                signer: standardwebhooks::Webhook::new(options.secret.expose())?,
                clock: Arc::clone(&clock),
            };
            let (to_post, answer) = (to_post.clone(), answer.clone());
            thread::Builder::new()
                .name(format!("webhook-{number}"))
                .spawn(move || poster.run(&to_post, &answer))?;
        }
        Ok(Webhooks {
            options,
            hub,
            clock,
            entropy,
            letters,
            answers,
            in_hand: BTreeSet::new(),
            noted: Vec::new(),
            backlog_due_ns: 0,
            failures: 0,
        })
    }

    /// Delivers until the hub is closed. What fails is tried again.
    ///
    /// # Errors
    /// [`Superseded`]: the process must end.
    pub async fn run(mut self) -> Result<(), Superseded> {
        let (clock, closing) = (Arc::clone(&self.clock), self.hub.closing());
        let work = async {
            loop {
                let Err(failure) = self.session().await;
                outlast("delivering events", &failure, &mut self.failures, &*clock).await?;
            }
        };
        // Whatever is in hand is delivered or not; the next start tries again what was not written down.
        match select(pin!(work), pin!(closing)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), _)) => Ok(()),
        }
    }

    async fn session(&mut self) -> Result<std::convert::Infallible, Error> {
        let Options { target, limits, incarnation, catalog, .. } = self.options.clone();
        let endpoint = ENDPOINT.to_owned();
        let deliveries =
            Deliveries::connect(&target, &limits, incarnation, endpoint, catalog).await?;
        loop {
            if !self.noted.is_empty() {
                // Not taken out of hand before it is written down: the same would be due again.
                let noted = std::mem::take(&mut self.noted);
                if let Err(failure) = self.note(&deliveries, &noted).await {
                    self.noted = noted;
                    return Err(failure);
                }
                for answered in noted {
                    self.in_hand.remove(&answered.event_id);
                }
            }
            let wait = self.hand_out(&deliveries).await?;
            self.failures = 0;
            let (hub, clock) = (Arc::clone(&self.hub), Arc::clone(&self.clock));
            let answered = {
                let bell = pin!(hub.deliveries.notified());
                let rung = select(bell, clock.sleep(wait));
                match select(pin!(self.answers.recv()), rung).await {
                    Either::Left((answered, _)) => answered,
                    Either::Right(_) => None,
                }
            };
            self.noted.extend(answered);
            while let Ok(answered) = self.answers.try_recv() {
                self.noted.push(answered);
            }
        }
    }

    /// Hands out what is due, as far as there are threads for it; returns when to look again.
    async fn hand_out(&mut self, deliveries: &Deliveries) -> Result<Duration, Error> {
        if self.clock.monotonic_ns() >= self.backlog_due_ns {
            // Above all while there is no room: that is when somebody must be told.
            self.backlog(deliveries).await?;
        }
        let room = self.options.parallel - self.in_hand.len();
        if room == 0 {
            return Ok(LOOK);
        }
        let in_hand: Vec<i64> = self.in_hand.iter().copied().collect();
        let wait_max = Duration::from_millis(self.options.backoff_cap_ms);
        let due = deliveries.due(&in_hand, room, wait_max);
        let due = within(&*self.clock, &self.options.limits, due).await?;
        let full = due.len() == room;
        let catalog = self.options.catalog.load_full();
        let mut unreadable = Vec::new();
        for Due { event_id, event, attempts } in due {
            match event {
                Ok(event) => {
                    let body = (self.options.body)(&event, &catalog);
                    self.in_hand.insert(event_id);
                    let sent = self.letters.try_send(Letter { event_id, attempts, body });
                    assert!(sent.is_ok(), "there is a thread for each letter in hand");
                }
                Err(error) => {
                    error!(event_id, %error, "an event cannot be read and is not delivered");
                    let error = Some("it cannot be read".to_owned());
                    unreadable.push(Answered { event_id, attempts, error });
                }
            }
        }
        if !unreadable.is_empty() {
            self.note(deliveries, &unreadable).await?;
        }
        if full {
            return Ok(LOOK);
        }
        let next_due = self.backlog(deliveries).await?;
        Ok(next_due.unwrap_or(LOOK).clamp(LOOK_MIN, LOOK))
    }

    /// Tells how far deliveries are behind; returns until when the next one that is not in hand is due.
    async fn backlog(&mut self, deliveries: &Deliveries) -> Result<Option<Duration>, Error> {
        let in_hand: Vec<i64> = self.in_hand.iter().copied().collect();
        let backlog = deliveries.backlog(&in_hand);
        let Backlog { next_due, oldest, dead } =
            within(&*self.clock, &self.options.limits, backlog).await?;
        telemetry::webhook_backlog(oldest, dead);
        let look_ns = u64::try_from(LOOK.as_nanos()).expect("seconds");
        self.backlog_due_ns = self.clock.monotonic_ns() + look_ns;
        Ok(next_due)
    }

    /// Writes down what was tried.
    async fn note(&mut self, deliveries: &Deliveries, answered: &[Answered]) -> Result<(), Error> {
        let mut tried = Vec::with_capacity(answered.len());
        let mut failed = 0;
        for Answered { event_id, attempts, error } in answered {
            let delay_ms = self.backoff_ms(attempts + 1);
            if let Some(why) = error {
                failed += 1;
                info!(event_id, attempt = attempts + 1, why, "an event was not delivered");
            }
            tried.push(Tried { event_id: *event_id, error: error.clone(), delay_ms });
        }
        let dead = within(
            &*self.clock,
            &self.options.limits,
            deliveries.note(&tried, self.options.attempts_max),
        )
        .await?;
        for event_id in &dead {
            warn!(event_id, "an event is a dead letter: `ubscore webhook resend` has it delivered");
        }
        let count = |number: usize| u64::try_from(number).expect("at most 64");
        telemetry::webhook_deliveries("delivered", count(answered.len() - failed));
        telemetry::webhook_deliveries("failed", count(failed));
        telemetry::webhook_deliveries("dead", count(dead.len()));
        Ok(())
    }

    /// Exponential, the second half of it by chance: many that failed together are not tried together again.
    fn backoff_ms(&mut self, attempt: u32) -> u64 {
        let doubled = 1_u64 << attempt.saturating_sub(1).min(32);
        let longest = self.options.backoff_base_ms.saturating_mul(doubled);
        let longest = longest.min(self.options.backoff_cap_ms);
        longest / 2 + self.entropy.u64() % (longest / 2 + 1)
    }
}

/// One thread that posts.
struct Poster {
    agent: ureq::Agent,
    url: Secret,
    signer: standardwebhooks::Webhook,
    clock: Arc<dyn Clock>,
}

impl Poster {
    fn run(&self, letters: &Receiver<Letter>, answers: &mpsc::UnboundedSender<Answered>) {
        // Both end with the task.
        while let Ok(Letter { event_id, attempts, body }) = letters.recv() {
            let error = self.post(event_id, &body).err();
            if answers.send(Answered { event_id, attempts, error }).is_err() {
                return;
            }
        }
    }

    /// Posts once. An error is why it was not taken, without the address: it may hold a password.
    fn post(&self, event_id: i64, body: &str) -> Result<(), String> {
        let id = event_id.to_string();
        let now_s = i64::try_from(self.clock.now_s()).expect("before the year 292 billion");
        let signature = self.signer.sign(&id, now_s, body.as_bytes()).map_err(|e| e.to_string())?;
        let answer = self
            .agent
            .post(self.url.expose())
            .content_type("application/json")
            .header(standardwebhooks::HEADER_WEBHOOK_ID, &id)
            .header(standardwebhooks::HEADER_WEBHOOK_TIMESTAMP, now_s.to_string())
            .header(standardwebhooks::HEADER_WEBHOOK_SIGNATURE, signature)
            .send(body);
        let answer = answer.map_err(|error| crate::alert::webhook::reason(&error))?;
        let status = answer.status();
        let mut rest = answer.into_body().into_reader().take(ANSWER_BYTES_MAX);
        // What it says beside its status changes nothing; where it breaks off, the connection is not used again.
        io::copy(&mut rest, &mut io::sink()).ok();
        if status.is_success() { Ok(()) } else { Err(format!("it answered {}", status.as_u16())) }
    }
}
