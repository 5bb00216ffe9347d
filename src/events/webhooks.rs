//! Webhooks: posts every event to the operator's endpoint, at least once, and the events of one
//! transfer in order. Each follower of transactions is an endpoint too, with a task and threads of
//! its own: the end of a transaction writes their deliveries.
//!
//! The task here reads the journal after a cursor. It records deliveries of those events together
//! with the cursor, in one transaction. It knows which deliveries are due and which are in
//! progress. Threads of its own post them, so that an endpoint that hangs blocks no other work and
//! no stop of the process. A failed try is repeated after a back-off that PostgreSQL stores. After
//! the last try the event is a dead letter, and the next event of its transfer is posted. A try
//! that was not recorded is repeated under the same id.
//!
//! Source: Standard Webhooks 1.0 (headers, signature, ids that stay the same).

use std::collections::BTreeSet;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam::channel::{Receiver, Sender, bounded};
use futures_util::future::{Either, select};
use tokio::sync::{Notify, mpsc};
use tracing::{error, info, warn};

use super::{Hub, outlast, within};
use crate::alert::{Alert, alert_about};
use crate::clock::Clock;
use crate::config::secret::Secret;
use crate::endpoint::{self, Endpoint, EndpointError};
use crate::entropy::Entropy;
use crate::postgres::events::UserEvent;
use crate::postgres::webhooks::{Backlog, Collected, Deliveries, Due, Tried};
use crate::postgres::{Address, Error, Limits, Superseded};
use crate::telemetry;
use domain::asset::Catalog;

/// The name of the operator's endpoint, in rows. It gets every event.
pub const ENDPOINT: &str = "default";
/// What the name of a follower has before it, in rows. `transaction_tell` writes it too.
pub const FOLLOWER: &str = "follower.";
/// Bytes of an answer that are read. They have no meaning, but a connection with a fully read
/// answer can be used again.
const ANSWER_BYTES_MAX: u64 = 16_384;
/// The longest pause between two looks for due deliveries. A bell may be lost.
const LOOK: Duration = Duration::from_secs(5);
/// The pause after each read of the journal, so that a busy service needs few: later flights share
/// the next one.
const COLLECT_PAUSE: Duration = Duration::from_millis(20);
/// The shortest.
const LOOK_MIN: Duration = Duration::from_millis(10);

/// The endpoint, and its limits; see `[webhooks]` in the configuration.
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
    /// The name of the endpoint, in rows.
    pub endpoint: String,
    /// Makes the body of an event.
    pub body: fn(&UserEvent, &Catalog) -> String,
    /// `http://` or `https://`.
    pub url: Secret,
    /// The key of signatures.
    pub secret: Secret,
    /// Time limit of one try.
    pub timeout: Duration,
    /// Deliveries at the same time.
    pub parallel: usize,
    /// Tries of one event.
    pub attempts_max: u32,
    /// The first back-off, milliseconds.
    pub backoff_base_ms: u64,
    /// The longest one.
    pub backoff_cap_ms: u64,
}

/// Why the deliveries cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The secret is not one of Standard Webhooks; the configuration refuses it too.
    #[error("webhooks.secret is not a secret of Standard Webhooks")]
    Secret(#[from] standardwebhooks::WebhookError),
    /// The system refused a thread.
    #[error("cannot start a thread for webhooks")]
    Thread(#[from] io::Error),
}

/// One try.
struct Letter {
    event_id: i64,
    attempts: u32,
    body: String,
}

/// Why an event was not delivered. Without the address, which may hold a password.
#[derive(Debug, thiserror::Error)]
enum PostError {
    /// The event's row cannot be read.
    #[error("it cannot be read")]
    Unreadable,
    /// No answer came.
    #[error(transparent)]
    Unanswered(#[from] EndpointError),
    /// The endpoint answered with a status that is no success.
    #[error("it answered {0}")]
    Status(u16),
}

/// The result of one try.
struct Answered {
    event_id: i64,
    attempts: u32,
    error: Option<PostError>,
}

/// The task that hands out due deliveries.
pub struct Webhooks {
    options: Options,
    hub: Arc<Hub>,
    bell: Arc<Notify>,
    clock: Arc<dyn Clock>,
    entropy: Box<dyn Entropy>,
    letters: Sender<Letter>,
    answers: mpsc::UnboundedReceiver<Answered>,
    /// Events that a thread has, with a result not recorded yet.
    in_hand: BTreeSet<i64>,
    /// Results that are not recorded yet.
    noted: Vec<Answered>,
    /// When the journal is read next, at the earliest, monotonic ns.
    collect_due_ns: u64,
    /// When the backlog is measured next, at the latest, monotonic ns.
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
        // Bounded by the deliveries in progress.
        let (answer, answers) = mpsc::unbounded_channel();
        let agent = endpoint::agent(options.timeout);
        for number in 0..options.parallel {
            let poster = Poster {
                endpoint: Endpoint::new(agent.clone(), options.url.clone(), &options.secret)?,
                clock: Arc::clone(&clock),
            };
            let (to_post, answer) = (to_post.clone(), answer.clone());
            thread::Builder::new()
                .name(format!("webhook-{number}"))
                .spawn(move || poster.run(&to_post, &answer))?;
        }
        Ok(Webhooks {
            options,
            bell: hub.bell(),
            hub,
            clock,
            entropy,
            letters,
            answers,
            in_hand: BTreeSet::new(),
            noted: Vec::new(),
            collect_due_ns: 0,
            backlog_due_ns: 0,
            failures: 0,
        })
    }

    /// Delivers until the hub is closed. A failure is retried.
    ///
    /// # Errors
    /// [`Superseded`]: the process must end.
    pub async fn run(mut self) -> Result<(), Superseded> {
        let (clock, closing) = (Arc::clone(&self.clock), self.hub.closing());
        let work = async {
            loop {
                let Err(failure) = self.session().await;
                outlast("the delivery of events", &failure, &mut self.failures, &*clock).await?;
            }
        };
        // Deliveries in progress may end or not. The next start repeats those that are not
        // recorded.
        match select(pin!(work), pin!(closing)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), _)) => Ok(()),
        }
    }

    async fn session(&mut self) -> Result<std::convert::Infallible, Error> {
        let Options { target, limits, incarnation, catalog, endpoint, .. } = self.options.clone();
        let deliveries =
            Deliveries::connect(&target, &limits, incarnation, endpoint, catalog).await?;
        loop {
            if !self.noted.is_empty() {
                // Removed after they are recorded: before, the same events would be due again.
                let noted = std::mem::take(&mut self.noted);
                if let Err(failure) = self.note(&deliveries, &noted).await {
                    self.noted = noted;
                    return Err(failure);
                }
                for answered in noted {
                    self.in_hand.remove(&answered.event_id);
                }
            }
            let more = self.collect(&deliveries).await?;
            let wait = self.hand_out(&deliveries).await?;
            let wait = if more { COLLECT_PAUSE.min(wait) } else { wait };
            self.failures = 0;
            let (notify, clock) = (Arc::clone(&self.bell), Arc::clone(&self.clock));
            let pause = self.collect_due_ns.saturating_sub(clock.monotonic_ns());
            let answered = {
                let bell = pin!(async {
                    // The bell last: an answer that comes before it leaves it for the next turn.
                    clock.sleep(Duration::from_nanos(pause)).await;
                    notify.notified().await;
                });
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

    /// Makes deliveries of new rows of the journal, if a read is due. Returns whether there may be
    /// more.
    async fn collect(&mut self, deliveries: &Deliveries) -> Result<bool, Error> {
        // The deliveries of a follower are written with the transactions.
        if self.options.endpoint != ENDPOINT {
            return Ok(false);
        }
        if self.clock.monotonic_ns() < self.collect_due_ns {
            return Ok(true);
        }
        let collect = deliveries.collect();
        let Collected { events, found, more, damaged } =
            within(&*self.clock, &self.options.limits, collect).await?;
        if let Some(row) = damaged {
            alert_about(Alert::JournalDamaged, &row.place(), format_args!("{row}"));
        }
        if found < events as u64 {
            warn!(events, found, "the others have no transfer and are not delivered");
        }
        let pause_ns = u64::try_from(COLLECT_PAUSE.as_nanos()).expect("milliseconds");
        self.collect_due_ns = self.clock.monotonic_ns() + pause_ns;
        Ok(more)
    }

    /// Hands due deliveries to free threads. Returns the pause before the next look.
    async fn hand_out(&mut self, deliveries: &Deliveries) -> Result<Duration, Error> {
        if self.clock.monotonic_ns() >= self.backlog_due_ns {
            // Also without a free thread: then the metric matters most.
            self.backlog(deliveries).await?;
        }
        assert!(self.in_hand.len() <= self.options.parallel, "a thread for each delivery");
        let room = self.options.parallel - self.in_hand.len();
        if room == 0 {
            return Ok(LOOK);
        }
        let in_hand: Vec<i64> = self.in_hand.iter().copied().collect();
        let wait_max = Duration::from_millis(self.options.backoff_cap_ms);
        let due = deliveries.due(&in_hand, room, wait_max);
        let due = within(&*self.clock, &self.options.limits, due).await?;
        debug_assert!(due.len() <= room, "no more than asked for");
        let full = due.len() == room;
        let catalog = self.options.catalog.load_full();
        let mut unreadable = Vec::new();
        for Due { event_id, event, attempts } in due {
            match event {
                Ok(event) => {
                    let body = (self.options.body)(&event, &catalog);
                    let is_new = self.in_hand.insert(event_id);
                    assert!(is_new, "an event in progress is not due");
                    let sent = self.letters.try_send(Letter { event_id, attempts, body });
                    assert!(sent.is_ok(), "a thread for each delivery");
                }
                Err(error) => {
                    error!(event_id, %error, "an event cannot be read and is not delivered");
                    let error = Some(PostError::Unreadable);
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

    /// Measures the backlog. Returns the time until the next delivery that is not in progress is
    /// due.
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

    /// Records the results of tries.
    async fn note(&mut self, deliveries: &Deliveries, answered: &[Answered]) -> Result<(), Error> {
        let mut tried = Vec::with_capacity(answered.len());
        let mut failed = 0;
        for Answered { event_id, attempts, error } in answered {
            let delay_ms = self.backoff_ms(attempts + 1);
            if let Some(why) = error {
                failed += 1;
                info!(event_id, attempt = attempts + 1, %why, "an event was not delivered");
            }
            tried.push(Tried {
                event_id: *event_id,
                error: error.as_ref().map(PostError::to_string),
                delay_ms,
            });
        }
        let dead = within(
            &*self.clock,
            &self.options.limits,
            deliveries.note(&tried, self.options.attempts_max),
        )
        .await?;
        for event_id in &dead {
            warn!(
                event_id,
                "an event is a dead letter; send it again with `ubscore webhook resend`"
            );
        }
        let count = |number: usize| u64::try_from(number).expect("at most 64");
        telemetry::webhook_deliveries("delivered", count(answered.len() - failed));
        telemetry::webhook_deliveries("failed", count(failed));
        telemetry::webhook_deliveries("dead", count(dead.len()));
        Ok(())
    }

    /// Exponential, with a random second half: deliveries that failed together are not repeated
    /// together.
    fn backoff_ms(&mut self, attempt: u32) -> u64 {
        let doubled = 1_u64 << attempt.saturating_sub(1).min(32);
        let longest = self.options.backoff_base_ms.saturating_mul(doubled);
        let longest = longest.min(self.options.backoff_cap_ms);
        longest / 2 + self.entropy.u64() % (longest / 2 + 1)
    }
}

/// One thread that posts.
struct Poster {
    endpoint: Endpoint,
    clock: Arc<dyn Clock>,
}

impl Poster {
    fn run(&self, letters: &Receiver<Letter>, answers: &mpsc::UnboundedSender<Answered>) {
        // Both channels end with the task.
        while let Ok(Letter { event_id, attempts, body }) = letters.recv() {
            let error = self.post(event_id, &body).err();
            if answers.send(Answered { event_id, attempts, error }).is_err() {
                return;
            }
        }
    }

    /// Posts once.
    fn post(&self, event_id: i64, body: &str) -> Result<(), PostError> {
        let answer = self.endpoint.post(&event_id.to_string(), self.clock.now_s(), body)?;
        let (status, is_success) = (answer.status, answer.is_success());
        // Only the status counts. If the body ends early, the connection is not used again.
        drop(answer.read(ANSWER_BYTES_MAX));
        if is_success { Ok(()) } else { Err(PostError::Status(status)) }
    }
}
