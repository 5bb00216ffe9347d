//! Moves money between Funding and Spot, and knows the outcome in the end.
//!
//! ```text
//! UBSCORE_TOKEN=... cargo run --example transfer -- FUNDING SPOT USDT 12.5 --cid order-77
//! ```
//!
//! Why it is safe:
//!
//! - The `cid` names the transfer, and is printed before anything is sent. If this program is
//!   killed, run the same command again: it returns the first one's outcome.
//! - No answer, or a 5xx, does not show the outcome: the same request is sent again, with the same
//!   `cid`.
//! - 202 is a promise: the transfer is polled until it has ended.
//! - Any other refusal ends it: nothing moves, or it has ended and nothing has moved. The exception
//!   is a refused token: it does not show the outcome of an earlier attempt.
//!
//! Prints the last answer. Exit code 0: the money has arrived; 1: it has not moved; 2: wrong
//! arguments; 3: not known yet.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use ulid::Ulid;

/// The server holds a long poll for at most the requested time, and then needs time to answer.
const POLL_MS: u64 = 10_000;
const TIMEOUT: Duration = Duration::from_secs(15);
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Moves money between Funding and Spot, safely.
#[derive(Parser)]
struct Arguments {
    /// FUNDING or SPOT.
    source: String,
    /// SPOT or FUNDING.
    target: String,
    /// For example USDT.
    asset: String,
    /// Decimal text, for example 12.5.
    amount: String,
    /// The transfer's name; generated if absent.
    #[arg(long)]
    cid: Option<String>,
    /// The service's address.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Seconds before giving up.
    #[arg(long, default_value_t = 60)]
    patience: u64,
}

/// One answer.
struct Answer {
    status: u16,
    body: Value,
    retry_after: Duration,
}

/// One user of one service.
struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
    deadline: Instant,
}

impl Client {
    /// One request; `None` without an answer: not connected, cut off, timed out, or half an answer.
    fn ask(&self, path: &str, body: Option<&Value>) -> Option<Answer> {
        let url = format!("{}/api/v1/internal_transfer{path}", self.url.trim_end_matches('/'));
        let bearer = format!("Bearer {}", self.token);
        let answer = match body {
            Some(body) => self
                .agent
                .post(url)
                .header("Authorization", bearer)
                .content_type("application/json")
                .send(body.to_string()),
            None => self.agent.get(url).header("Authorization", bearer).call(),
        };
        let mut answer = answer.ok()?;
        let header = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let retry_after = header.and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
        let status = answer.status().as_u16();
        let body = serde_json::from_str(&answer.body_mut().read_to_string().ok()?).ok()?;
        Some(Answer { status, body, retry_after: Duration::from_secs(retry_after) })
    }

    /// The first usable answer; `None` when patience has run out.
    fn insist(&self, path: &str, body: Option<&Value>) -> Option<Answer> {
        let mut backoff = BACKOFF;
        loop {
            let answer = self.ask(path, body);
            let again =
                |answer: &Answer| answer.status >= 500 || matches!(answer.status, 408 | 429);
            let asked = answer.as_ref().map_or(Duration::ZERO, |answer| answer.retry_after);
            if answer.as_ref().is_some_and(|answer| !again(answer)) {
                return answer;
            }
            // Clients must not retry all at once: half of the pause is random. The last bits of a
            // ULID are.
            let chance = u32::try_from(Ulid::generate().random() % 512).unwrap_or(0);
            let wait = asked.max(backoff / 2 + backoff * chance / 1_024);
            if Instant::now() + wait > self.deadline {
                return None;
            }
            thread::sleep(wait);
            backoff = BACKOFF_MAX.min(backoff * 2);
        }
    }

    /// Runs one transfer to its end: its last answer, `None` if patience has run out.
    fn transfer(&self, body: &Value) -> Option<Answer> {
        let mut answer = self.insist("", Some(body))?;
        while answer.status < 300 && answer.body["final"] != true {
            let req_id = answer.body["req_id"].as_str().unwrap_or_default();
            answer = self.insist(&format!("/{req_id}?wait_ms={POLL_MS}"), None)?;
        }
        Some(answer)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Ok(token) = std::env::var("UBSCORE_TOKEN") else {
        eprintln!("UBSCORE_TOKEN is not set");
        return ExitCode::from(2);
    };
    let cid = arguments.cid.unwrap_or_else(|| Ulid::generate().to_string());
    // Before the first byte is sent. A real program stores it with its order, in the same
    // transaction.
    eprintln!("cid {cid}");
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .build()
        .into();
    let deadline = Instant::now() + Duration::from_secs(arguments.patience);
    let client = Client { agent, url: arguments.url, token, deadline };
    let Arguments { source, target, asset, amount, .. } = arguments;
    let body =
        json!({ "from": source, "to": target, "asset": asset, "amount": amount, "cid": cid });
    match client.transfer(&body) {
        Some(answer) => {
            println!("{}", answer.body);
            match answer.status {
                401 | 403 => ExitCode::from(3),
                200 if answer.body["state"] == "COMMITTED" => ExitCode::SUCCESS,
                _ => ExitCode::from(1),
            }
        }
        None => {
            println!(
                "{}",
                json!({ "cid": cid, "message": "not known yet: run it again with this cid" })
            );
            ExitCode::from(3)
        }
    }
}
