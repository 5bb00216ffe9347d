//! Alerts as JSON to a URL of the operator, from a bounded queue on a thread of its own.
//!
//! The async runtime is not used: the engine's threads raise alerts too, and an alert may report
//! that the process is broken. An alert that cannot be delivered is lost here and counted. It is
//! still in the log and in the metrics.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tracing::warn;

use crate::config::secret::Secret;
use crate::endpoint;
use crate::telemetry;

/// The most alerts that wait for delivery; the next one is dropped and counted.
const QUEUE_MAX: usize = 256;
/// Number of tries of one alert.
const TRIES: u32 = 4;
/// The wait after the first failed try; it doubles each time.
const BACKOFF: Duration = Duration::from_millis(200);

/// The webhook's URL and timeout.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://` or `https://`; secret, because any holder of the URL can raise false alarms.
    pub url: Secret,
    /// Timeout for the answer to one try.
    pub timeout: Duration,
}

/// One alert as it is sent.
pub struct Message {
    /// Its name.
    pub alert: &'static str,
    /// CRITICAL or WARNING.
    pub severity: &'static str,
    /// The message for operators.
    pub message: String,
    /// The time, ns since the Unix epoch.
    pub at_ns: u64,
}

/// The queue of the thread that delivers.
pub struct Webhook {
    queue: SyncSender<Message>,
    waiting: Arc<Waiting>,
}

/// Alerts queued or being delivered.
#[derive(Default)]
struct Waiting {
    count: Mutex<usize>,
    none: Condvar,
}

impl Webhook {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub fn start(options: &Options) -> io::Result<Webhook> {
        let (queue, messages) = mpsc::sync_channel(QUEUE_MAX);
        let waiting = Arc::new(Waiting::default());
        let (options, done) = (options.clone(), Arc::clone(&waiting));
        thread::Builder::new()
            .name("alert-webhook".to_owned())
            .spawn(move || deliver_all(&options, &messages, &done))?;
        Ok(Webhook { queue, waiting })
    }

    /// Queues an alert; it is dropped if the queue is full.
    pub fn send(&self, message: Message) {
        *self.waiting.count.lock() += 1;
        if self.queue.try_send(message).is_err() {
            self.waiting.one_less();
            count("dropped");
        }
    }

    /// Waits until the queue is empty, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let mut count = self.waiting.count.lock();
        self.waiting.none.wait_while_for(&mut count, |count| *count > 0, limit);
    }
}

impl Waiting {
    fn one_less(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!(telemetry::ALERTS_SENT_TOTAL, "outcome" => outcome).increment(1);
}

fn deliver_all(options: &Options, messages: &Receiver<Message>, waiting: &Waiting) {
    let agent = endpoint::agent(options.timeout);
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let instance = format!("{node}/{}", std::process::id());
    while let Ok(message) = messages.recv() {
        let body = body(&message, &instance);
        let mut tries = 0;
        let outcome = loop {
            let sent =
                agent.post(options.url.expose()).content_type("application/json").send(&body);
            let sent = sent.and_then(|answer| match answer.status() {
                status if status.is_success() => Ok(()),
                status => Err(ureq::Error::StatusCode(status.as_u16())),
            });
            match sent {
                Ok(()) => break "delivered",
                Err(error) => {
                    tries += 1;
                    let alert = message.alert;
                    if tries == TRIES {
                        warn!(
                            alert,
                            tries,
                            why = endpoint::reason(&error),
                            "the webhook did not get the alert"
                        );
                        break "failed";
                    }
                    thread::sleep(BACKOFF * (1 << (tries - 1)));
                }
            }
        };
        count(outcome);
        waiting.one_less();
    }
}

fn body(message: &Message, instance: &str) -> String {
    let Message { alert, severity, message, at_ns } = message;
    let at = Timestamp::from_nanosecond(i128::from(*at_ns)).expect("before the year 9999");
    let (at, instance) = (at.to_string(), instance.to_owned());
    json!({"alert": alert, "severity": severity, "message": message, "at": at, "instance": instance})
        .to_string()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn message(text: &str) -> Message {
        let at_ns = 1_700_000_000_123_000_000;
        Message { alert: "fenced", severity: "CRITICAL", message: text.to_owned(), at_ns }
    }

    fn listener() -> (TcpListener, Webhook) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let options = Options { url: Secret::new(url), timeout: PATIENCE };
        (listener, Webhook::start(&options).expect("a thread"))
    }

    /// Reads one request and answers it; returns its body.
    fn answer(stream: &mut TcpStream, status: &str) -> String {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut buffer).expect("a request");
            text += std::str::from_utf8(&buffer[..count]).expect("text");
            if text.ends_with('}') {
                break;
            }
        }
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .expect("written");
        text.split("\r\n\r\n").nth(1).expect("a body").to_owned()
    }

    #[test]
    fn what_is_not_taken_is_sent_again_and_a_flush_waits_for_it() {
        let (listener, webhook) = listener();
        webhook.send(message("a \"quoted\" one"));
        let mut bodies = Vec::new();
        for status in ["500 Internal Server Error", "200 OK"] {
            let (mut stream, _) = listener.accept().expect("a call");
            bodies.push(answer(&mut stream, status));
        }
        webhook.flush(PATIENCE);
        assert_eq!(*webhook.waiting.count.lock(), 0);
        assert_eq!(bodies[0], bodies[1]);
        let json: serde_json::Value = serde_json::from_str(&bodies[0]).expect("JSON");
        assert_eq!(json["alert"], "fenced");
        assert_eq!(json["severity"], "CRITICAL");
        assert_eq!(json["message"], "a \"quoted\" one");
        assert_eq!(json["at"], "2023-11-14T22:13:20.123Z");
        assert!(
            json["instance"].as_str().expect("text").ends_with(&std::process::id().to_string())
        );
    }

    /// A webhook that never answers delays neither a caller of `send` nor, beyond the limit, a
    /// caller of `flush`.
    #[test]
    fn a_silent_webhook_fills_the_queue_and_no_more() {
        let (_listener, webhook) = listener();
        for number in 0..2 * QUEUE_MAX {
            webhook.send(message(&number.to_string()));
        }
        let waiting = *webhook.waiting.count.lock();
        assert!(waiting == QUEUE_MAX || waiting == QUEUE_MAX + 1, "{waiting}");
        webhook.flush(Duration::from_millis(1));
    }
}
