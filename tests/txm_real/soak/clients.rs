//! The clients of a soak, and each answer that they got. No answer takes an earlier one back.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{SIGNERS, Soak};
use crate::harness::{Reply, hex_of, text};
use crate::txm_real::place::Party;

/// The states in the order in which a row passes them; both ends stand last.
const STATES: [&str; 6] = ["CREATED", "ALLOCATED", "SUBMITTED", "TRACKING", "CONFIRMED", "FAILED"];
/// Tries of one request in a row. Later ones come with the repeats.
const TRIES: usize = 4;

/// A request, and the last answer about it.
pub(super) struct Asked {
    pub(super) body: Value,
    /// The last row that an answer showed.
    pub(super) told: Option<Value>,
    /// Whether a cancel of it was asked for.
    pub(super) is_cancelled: bool,
}

/// An answer that is one. `None`: the node dies, is no owner, or cannot say now.
fn known(reply: Option<Reply>) -> Option<Reply> {
    let reply = reply.filter(|reply| ![500, 503].contains(&reply.status))?;
    (!reply.body.contains("NOT_LEADER")).then_some(reply)
}

impl Asked {
    pub(super) fn id(&self) -> Option<&str> {
        self.told.as_ref().map(|told| text(&told["txId"]))
    }

    /// Compares an answer with the one before it, and keeps it.
    pub(super) fn sees(&mut self, now: Value) {
        let rank = |row: &Value| {
            let rank = STATES.iter().position(|state| row["state"] == json!(state));
            rank.unwrap_or_else(|| panic!("no state: {row}"))
        };
        if let Some(before) = &self.told {
            let both = || format!("{now}\nafter {before}");
            assert_eq!(now["txId"], before["txId"], "{}", both());
            let has_nonce = before["nonce"].is_number();
            assert!(!has_nonce || now["nonce"] == before["nonce"], "{}", both());
            assert!(rank(&now) >= rank(before), "{}", both());
            let is_ended = rank(before) >= rank(&json!({"state": "CONFIRMED"}));
            assert!(!is_ended || now["state"] == before["state"], "{}", both());
            assert!(before["final"] == json!(false) || now["final"] == json!(true), "{}", both());
        }
        self.told = Some(now);
    }

    /// Posts it to a node. Returns whether it is answered.
    pub(super) fn post(&mut self, node: &Party) -> bool {
        let reply = node.try_ask("POST", "/api/v1/tx", Some(&self.body));
        let Some(reply) = known(reply) else { return false };
        let is_first = self.told.is_none();
        assert!(reply.status == 200 || (is_first && reply.status == 202), "{reply:?}");
        self.sees(reply.json());
        true
    }

    /// Reads its row.
    pub(super) fn look(&mut self, node: &Party) {
        let path = format!("/api/v1/tx/{}", self.id().expect("answered"));
        if let Some(reply) = known(node.try_ask("GET", &path, None)) {
            assert_eq!(reply.status, 200, "{reply:?}");
            self.sees(reply.json());
        }
    }

    /// Asks for a cancel: a wish.
    fn cancel(&mut self, node: &Party) {
        let path = format!("/api/v1/tx/{}/cancel", self.id().expect("answered"));
        self.is_cancelled = true;
        if let Some(reply) = known(node.try_ask("POST", &path, Some(&json!({})))) {
            assert!(reply.status == 202 || reply.body.contains("NOT_CANCELLABLE"), "{reply:?}");
        }
    }

    /// Asks for a cancel by the request's own name, also if no answer has come yet.
    fn cancel_by_name(&mut self, node: &Party) {
        let body = json!({"signer": self.body["signer"], "requestId": self.body["requestId"]});
        self.is_cancelled = true;
        if let Some(reply) = known(node.try_ask("POST", "/api/v1/tx/cancel", Some(&body))) {
            let is_ended = reply.body.contains("NOT_CANCELLABLE");
            assert!([200, 202].contains(&reply.status) || is_ended, "{reply:?}");
            if !is_ended {
                self.sees(reply.json());
            }
        }
    }

    /// The same names with another body, and the same purpose under another name, are refused.
    fn is_refused_otherwise(&self, node: &Party, other_signer: String) {
        let mut dearer = self.body.clone();
        dearer["payload"]["value"] = json!("7");
        let mut renamed = self.body.clone();
        renamed["requestId"] = json!(format!("{}-again", text(&self.body["requestId"])));
        renamed["signer"] = json!(other_signer);
        for body in [dearer, renamed] {
            if let Some(reply) = known(node.try_ask("POST", "/api/v1/tx", Some(&body))) {
                assert!(reply.body.contains("DUPLICATE_REQUEST"), "{body}: {reply:?}");
            }
        }
    }
}

/// The feed as a client has read it, part by part, from any node.
#[derive(Default)]
pub(super) struct SoakFeed {
    /// The place behind the last part.
    next: Option<String>,
    /// The last number of each row.
    pub(super) seqs: BTreeMap<String, u64>,
}

impl SoakFeed {
    /// Reads the next part. Returns whether it had events.
    pub(super) fn read(&mut self, node: &Party) -> bool {
        let after = self.next.as_ref().map(|next| format!("&after={next}")).unwrap_or_default();
        let path = format!("/api/v1/tx/events?limit=200{after}");
        let Some(reply) = known(node.try_ask("GET", &path, None)) else { return false };
        assert_eq!(reply.status, 200, "{reply:?}");
        let part = reply.json();
        let events = part["events"].as_array().expect("events");
        for event in events {
            let last = self.seqs.entry(text(&event["txId"]).to_owned()).or_default();
            assert_eq!(event["seq"], json!(*last + 1), "behind {last}: {event}");
            *last += 1;
        }
        self.next = Some(text(&part["next"]).to_owned());
        !events.is_empty()
    }
}

impl Soak {
    fn draft(&self, name: &str) -> Asked {
        let random = &self.random;
        let mut body = self.place.payment(name);
        body["signer"] = json!(hex_of(SIGNERS[random.below(SIGNERS.len())]));
        if !random.once_in(4) {
            body["businessKey"] = json!(format!("key-{name}"));
        }
        if random.once_in(3) {
            body.as_object_mut().expect("an object").remove("nonce");
        }
        Asked { body, told: None, is_cancelled: false }
    }

    /// A client: new requests, and all sorts of repeats.
    pub(super) fn shop(&self, client: &str) {
        let mut own: Vec<Asked> = Vec::new();
        while self.goes_on() {
            self.random.pause(150);
            let Some(node) = self.some_node() else { continue };
            if own.is_empty() || self.random.below(10) < 5 {
                let mut request = self.draft(&format!("{client}-{}", own.len()));
                for _ in 0..TRIES {
                    if self.some_node().is_some_and(|node| request.post(&node)) {
                        break;
                    }
                    self.random.pause(100);
                }
                own.push(request);
                continue;
            }
            let place = own.len() - 1 - self.random.below(own.len().min(40));
            self.repeat(&mut own[place], &node);
        }
        self.requests.lock().expect("no panic").extend(own);
    }

    fn repeat(&self, request: &mut Asked, node: &Arc<Party>) {
        let is_answered = request.id().is_some();
        match self.random.below(8) {
            0 if is_answered => request.cancel(node),
            1 if self.random.once_in(2) => request.cancel_by_name(node),
            2 | 3 if is_answered => request.look(node),
            // A row that was cancelled before its request came knows neither body nor purpose.
            4 if is_answered && !request.is_cancelled && !request.body["businessKey"].is_null() => {
                let other = SIGNERS[self.random.below(SIGNERS.len())];
                request.is_refused_otherwise(node, hex_of(other));
            }
            _ => drop(request.post(node)),
        }
    }

    /// A client of the feed, and an operator.
    pub(super) fn follow_feed(&self) {
        while self.goes_on() {
            self.random.pause(200);
            if self.random.once_in(8) {
                self.release_blocked();
            }
            if let Some(node) = self.some_node() {
                self.feed.lock().expect("no panic").read(&node);
            }
        }
    }

    /// Behind the end every client sees it.
    pub(super) fn clients_see_the_end(&self) {
        let node = self.seats[0].node().expect("all is well");
        for request in self.requests.lock().expect("no panic").iter_mut() {
            if request.id().is_some() {
                request.look(&node);
                assert_eq!(request.told.as_ref().expect("told")["final"], json!(true));
            }
        }
    }
}
