//! A participant of both kinds that records each action once, and loses some of its answers.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{Random, read_request, text};

/// The record of one round of one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// The outcome of its try.
    pub(super) tried: Option<bool>,
    pub(super) confirmed: bool,
    pub(super) cancelled: bool,
    /// The outcome of its commit, as the last participant.
    pub(super) committed: Option<bool>,
}

/// See the module.
pub(super) struct Bank {
    url: String,
    book: Arc<Book>,
}

struct Book {
    /// By transaction and round.
    entries: Mutex<BTreeMap<(String, u64), Entry>>,
    /// Questions that must not come.
    wrong: Mutex<Vec<String>>,
    random: Random,
}

impl Bank {
    pub(super) fn start(seed: u64) -> Bank {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let (entries, wrong, random) = (Mutex::default(), Mutex::default(), Random::new(seed));
        let book = Arc::new(Book { entries, wrong, random });
        let of_calls = Arc::clone(&book);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let book = Arc::clone(&of_calls);
                // A caller that is killed may be gone.
                let Ok(stream) = stream else { continue };
                thread::spawn(move || book.serve(stream));
            }
        });
        Bank { url, book }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The record of a round.
    pub(super) fn entry(&self, tx_id: &str, round: u64) -> Entry {
        let entries = self.book.entries.lock().expect("no panic");
        entries.get(&(tx_id.to_owned(), round)).copied().unwrap_or_default()
    }

    /// Asserts that no question contradicted an earlier one.
    pub(super) fn assert_in_order(&self) {
        assert_eq!(*self.book.wrong.lock().expect("no panic"), Vec::<String>::new());
    }
}

impl Book {
    fn serve(&self, mut stream: TcpStream) {
        let Ok((_, body)) = read_request(&stream) else { return };
        if self.random.once_in(20) {
            return;
        }
        let answer = self.answer(&serde_json::from_slice(&body).expect("JSON")).to_string();
        if self.random.once_in(10) {
            return;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", answer.len());
        // The caller may be gone.
        stream.write_all(format!("{head}Connection: close\r\n\r\n{answer}").as_bytes()).ok();
    }

    fn answer(&self, call: &Value) -> Value {
        let name = (text(&call["tx_id"]).to_owned(), call["round"].as_u64().expect("a number"));
        let agrees = call["payload"]["agrees"].as_bool().expect("our own payload");
        let mut entries = self.entries.lock().expect("no panic");
        let entry = entries.entry(name).or_default();
        let (done, wrong) = match text(&call["action"]) {
            // A try behind its cancel is refused for ever.
            "try" => (*entry.tried.get_or_insert(agrees && !entry.cancelled), false),
            "commit" => (*entry.committed.get_or_insert(agrees), false),
            "confirm" => {
                let wrong = entry.tried != Some(true) || entry.cancelled;
                entry.confirmed = true;
                (true, wrong)
            }
            "cancel" => {
                entry.cancelled = true;
                (true, entry.confirmed)
            }
            other => panic!("{other} is no action"),
        };
        if wrong {
            self.wrong.lock().expect("no panic").push(format!("{call}: {entry:?}"));
        }
        match done {
            true => json!({"outcome": "done"}),
            false => json!({"outcome": "refused", "code": "NO"}),
        }
    }
}
