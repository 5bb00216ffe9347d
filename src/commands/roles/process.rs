//! The parts that every role begins with: telemetry, alerts, supervision, listeners, the reload of
//! keys, and signals.
//!
//! Nothing here starts an engine or needs one. Three types of other rooms come with it: the notice
//! of a dead engine in the last words, the rejection of a worker in a refusal, and the superseded
//! process of PostgreSQL in a task.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use hyper::Request;
use hyper::body::Incoming;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::sync::{oneshot, watch};
use tracing::info;

use super::signals::{Signals, hangups, notify_manager, raise_open_files};
use crate::alert;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::exit::Exit;
use crate::http::answer::Answer;
use crate::http::listener::{self, Drained, Limits};
use crate::http::rotation::{self, Rotating};
use crate::http::tls::Tls;
use crate::last_words;
use crate::postgres::embedded;
use crate::task::{Failed, Tasks};
use crate::telemetry::{self, Metrics, init_logging};

/// How long an orderly stop waits for the webhook of alerts.
const LAST_ALERTS: Duration = Duration::from_secs(1);
/// How long it waits for the collector of spans.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// On a machine with so many cores or fewer, one thread runs all tasks. The engine's threads and
/// PostgreSQL need the other core, and a second thread mostly wakes the first and is woken by it.
/// Work that takes long has threads of its own.
const SMALL_CORES: usize = 2;

/// Between two folds of the metrics: histograms grow until they are folded.
const METRICS_EVERY: Duration = Duration::from_secs(5);

/// A process of any role.
pub struct Process {
    /// The configuration.
    pub config: Config,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Counters and histograms.
    pub metrics: &'static Metrics,
    /// Every background task.
    pub tasks: Tasks,
    /// The signals that stop the process.
    pub signals: Signals,
    /// SIGHUP; taken by [`Process::keep_keys`].
    hangups: Option<Signal>,
    /// `None` once the process is stopping.
    stop: Option<watch::Sender<()>>,
    /// Set when nothing may be answered any more.
    silent: Arc<AtomicBool>,
}

/// Why a process ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// A task ended.
    #[error(transparent)]
    Task(#[from] Failed),
    /// The embedded PostgreSQL ended and does not start.
    #[error("the embedded PostgreSQL ended, and cannot be started again")]
    Postgres(#[source] embedded::Error),
}

impl Ended {
    fn exit(&self) -> Exit {
        match self {
            Ended::Task(failed) => failed.exit(),
            Ended::Postgres(_) => Exit::Broken,
        }
    }
}

/// Here and not in its room: the configuration checks addresses of PostgreSQL, which logs.
impl From<&Config> for telemetry::Options {
    fn from(config: &Config) -> telemetry::Options {
        telemetry::Options {
            filter: config.log.filter.clone(),
            format: config.log.format,
            otlp_endpoint: config.telemetry.otlp_endpoint.clone(),
            sample_ratio: config.telemetry.sample_ratio,
        }
    }
}

/// Runs a role to its end. `signals` makes those that stop it.
///
/// # Errors
/// The role's error, or the process cannot begin.
pub fn run(
    config: Config,
    signals: impl FnOnce() -> std::io::Result<Signals>,
    role: impl AsyncFnOnce(Process) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    let traces = init_logging(&telemetry::Options::from(&config))?;
    #[cfg(feature = "crash")]
    crate::crash::arm()?;
    raise_open_files();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= SMALL_CORES) {
        runtime.worker_threads(1);
    }
    let runtime = runtime.enable_all().build()?;
    let done = runtime.block_on(async { role(Process::begin(config, signals()?)?).await });
    traces.stop(LAST_SPANS);
    if done.is_ok() {
        // An error is the last line itself, and is written after these lines.
        telemetry::lines::flush();
    }
    done
}

impl Process {
    /// Begins to take the signals that stop it, to send alerts and to fold the metrics.
    ///
    /// # Errors
    /// The system allows no signal handlers, or the webhook of alerts cannot be used.
    pub fn begin(config: Config, signals: Signals) -> anyhow::Result<Process> {
        let hangups = hangups()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let metrics = Metrics::install();
        let options = alert::Options::from(&config);
        alert::start(&options, Arc::clone(&clock)).context("start alerting")?;
        let mut tasks = Tasks::default();
        tasks.run_endless("metrics", fold(metrics, Arc::clone(&clock)));
        Ok(Process {
            config,
            clock,
            metrics,
            tasks,
            signals,
            hangups: Some(hangups),
            stop: Some(watch::channel(()).0),
            silent: Arc::default(),
        })
    }

    /// Loses its sender when the process stops.
    pub fn stopping(&self) -> watch::Receiver<()> {
        let stop = self.stop.as_ref();
        stop.expect("nothing is begun while the process stops").subscribe()
    }

    /// Set when nothing may be answered any more; see [`Process::end_at_once`].
    pub fn silent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.silent)
    }

    /// Serves a listener until the process stops. The listener answers nothing once
    /// [`Process::end_at_once`] is called: another process may have changed what was read.
    pub fn serve<H, F>(
        &mut self,
        name: &'static str,
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        handler: H,
    ) -> Serving
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let limits = Limits::from(&self.config.http);
        self.serve_admitted(name, listener, (limits, |_| true), tls, handler)
    }

    /// The same with limits of its own, for the addresses that are admitted.
    pub fn serve_admitted<H, F, A>(
        &mut self,
        name: &'static str,
        listener: TcpListener,
        (limits, admits): (Limits, A),
        tls: Option<Arc<Tls>>,
        handler: H,
    ) -> Serving
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
        A: Fn(IpAddr) -> bool + Send + Sync + 'static,
    {
        let silent = Arc::clone(&self.silent);
        let mut stopped = self.stopping();
        let handler = move |request| {
            let (handler, silent) = (handler.clone(), Arc::clone(&silent));
            async move {
                let answer = handler(request).await;
                if silent.load(Ordering::Acquire) {
                    return std::future::pending().await;
                }
                answer
            }
        };
        let (sender, receiver) = oneshot::channel();
        self.tasks.run(name, async move {
            let stop = async move { drop(stopped.changed().await) };
            let served = listener::serve_admitted(listener, limits, admits, tls, handler, stop);
            let drained = served.await;
            // After a failure the stop does not wait for the counts.
            sender.send(drained).ok();
            Ok(())
        });
        Serving { name, drained: receiver }
    }

    /// Reads keys and certificates again, at the configured interval and after SIGHUP.
    pub fn keep_keys(&mut self, keys: Vec<Arc<dyn Rotating>>) {
        let hangups = self.hangups.take().expect("keys are kept once");
        let every = Duration::from_millis(self.config.reload.every_ms);
        let rotation = rotation::keep(keys, every, Arc::clone(&self.clock), hangups);
        self.tasks.run_endless("reload of keys", rotation);
    }

    /// Waits for a signal, which stops the process in order.
    ///
    /// # Errors
    /// [`Ended`]: a task ended first, or `postgres` did, which is the end of an embedded
    /// PostgreSQL.
    pub async fn ended(
        &mut self,
        postgres: impl Future<Output = embedded::Error>,
    ) -> Result<(), Ended> {
        tokio::select! {
            name = self.signals.next() => {
                info!(signal = name, "stopping");
                notify_manager(NotifyState::Stopping);
                Ok(())
            }
            failed = self.tasks.failed() => Err(failed.into()),
            failure = postgres => Err(Ended::Postgres(failure)),
        }
    }

    /// Ends the process without touching the disk: another process may own it by now.
    pub fn end_at_once(&self, why: &Ended) -> ! {
        // Nothing is answered from here on.
        self.silent.store(true, Ordering::Release);
        last_words::end_at_once(why, why.exit())
    }

    /// Stops the listeners and the endless tasks. The other tasks end when their inputs are
    /// dropped.
    pub fn stop(&mut self) {
        assert!(self.stop.take().is_some(), "a process stops once");
        self.tasks.abort_endless();
    }

    /// Sends the last alerts. The process ends afterwards.
    pub fn finish(self) -> Exit {
        alert::flush(LAST_ALERTS);
        Exit::Done
    }
}

/// Folds the metrics again and again.
async fn fold(metrics: &'static Metrics, clock: Arc<dyn Clock>) {
    loop {
        metrics.upkeep();
        clock.sleep(METRICS_EVERY).await;
    }
}

/// A listener that is being served.
pub struct Serving {
    name: &'static str,
    drained: oneshot::Receiver<Drained>,
}

impl Serving {
    /// Waits until every connection has ended.
    ///
    /// # Errors
    /// The listener's task broke.
    pub async fn drained(self) -> anyhow::Result<Drained> {
        self.drained.await.with_context(|| format!("{} broke", self.name))
    }
}

/// Binds a listener. If the port is taken, the error names the process that holds it.
///
/// # Errors
/// The address cannot be bound. `key` is the configuration's name of it.
pub async fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        let holder = listeners::get_process_by_port(address.port(), listeners::Protocol::TCP);
        let holder = match holder {
            Ok(process) => format!(", which process {} ({}) holds", process.pid, process.name),
            Err(_) => String::new(),
        };
        format!("{key}: listen on {address}{holder}")
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::http::ops;
    use crate::http::readiness::{Part, Readiness};
    use crate::postgres::Superseded;
    use domain::code::Code;

    /// The answer of a listener of this machine.
    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    /// Goal: a role without the engine has health, readiness, metrics, supervision and an orderly
    /// stop. Method: one with a part and a task of its own, asked over the network before and
    /// after it is ready, then ended by SIGTERM.
    #[tokio::test]
    async fn a_role_begins_without_the_engine() {
        let process = Process::begin(Config::default(), Signals::new().expect("handlers"));
        let mut process = process.expect("a process");
        let listener = listen(([127, 0, 0, 1], 0).into(), "ops.listen").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let is_open = Arc::new(AtomicBool::new(false));
        let open = Arc::clone(&is_open);
        let handler = move |request| {
            let why = (!open.load(Ordering::Acquire)).then(|| "The venue is closed.".to_owned());
            async move {
                let parts = vec![Part::new("venue", Code::SystemError, why)];
                ops::health(&request, &Readiness::of(parts))
            }
        };
        let health = process.serve("health", listener, None, handler);
        process.tasks.run_endless("work", std::future::pending());
        process.keep_keys(Vec::new());

        let answer = get(address, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("\"part\":\"venue\",\"ready\":false"), "{answer}");
        is_open.store(true, Ordering::Release);
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"ready\":true"), "{answer}");
        let answer = get(address, "/metrics").await;
        assert!(answer.contains("ubscore_ready"), "{answer}");
        let answer = get(address, "/admin/v1/transfers").await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");

        // The process has its handlers: the signal ends nothing but the wait.
        let ourselves = rustix::process::getpid();
        rustix::process::kill_process(ourselves, rustix::process::Signal::TERM).expect("sent");
        process.ended(std::future::pending()).await.expect("the signal comes first");
        let mut stopping = process.stopping();
        process.stop();
        assert!(stopping.changed().await.is_err(), "the sender is gone");
        let drained = health.drained().await.expect("drained");
        assert_eq!(drained.cut, 0);
        std::mem::take(&mut process.tasks).join().await;
        assert_eq!(process.finish(), Exit::Done);

        // The other end: a task that ends takes the process with it. In the same test, because a
        // signal reaches every process that runs here.
        let process = Process::begin(Config::default(), Signals::new().expect("handlers"));
        let mut process = process.expect("another process");
        process.tasks.run("work", async { Err(Superseded) });
        let ended = process.ended(std::future::pending()).await.expect_err("the task has ended");
        assert_eq!(ended.exit(), Exit::Superseded);
    }
}
