//! Participants of transactions over HTTP: services of the operator that are asked to try, confirm
//! and cancel a branch, or to commit it as the last one.
//!
//! A call has one of three outcomes. `Done` and `Refused` are decisions that the participant has
//! recorded. Everything else is `Unknown`: it may have decided, so the caller asks again, with the
//! same branch, action and round.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use domain::transfer::ReqId;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::config::Config;
use crate::config::participants::ParticipantKind;
use crate::endpoint::{self, Endpoint, EndpointError};
use crate::telemetry;

/// The longest answer that is read, bytes. An outcome and a code need about 100.
pub const ANSWER_BYTES_MAX: u64 = 65_536;
/// The longest code of a refusal, bytes. It is stored and shown as it is.
pub const CODE_BYTES_MAX: usize = 64;

/// The participants of the configuration. Calls may run at the same time; the caller sends one call
/// a branch at a time.
pub struct Participants {
    known: BTreeMap<String, Known>,
    clock: Arc<dyn Clock>,
}

struct Known {
    kind: ParticipantKind,
    endpoint: Arc<Endpoint>,
}

/// The action that a participant is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParticipantAction {
    /// Check, and lock the needed resources. It may be refused.
    Try,
    /// Do the work of a tried branch. It cannot be refused.
    Confirm,
    /// Unlock the resources of a branch, tried or not. It cannot be refused.
    Cancel,
    /// Check and do the work at once, as the last participant. It may be refused.
    Commit,
}

/// One call to a participant. A repeat of it has the same fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ParticipantCall {
    /// The name of the transaction that its owner gave.
    pub tx_id: String,
    /// The transaction's own id.
    #[serde(serialize_with = "displayed")]
    pub transaction_id: ReqId,
    /// The branch: its outcome of each action is recorded under this name.
    pub branch_id: String,
    /// The action.
    pub action: ParticipantAction,
    /// The round of the transaction, from 1.
    pub round: u16,
    /// The part of the request that is for this participant.
    pub payload: Value,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParticipantOutcome {
    /// The action is done and recorded.
    Done,
    /// A recorded refusal, to try or commit only.
    Refused {
        /// The participant's code: 1 to [`CODE_BYTES_MAX`] of `A-Z a-z 0-9 _ . -`.
        code: String,
    },
    /// Not known: it may be done or not. Ask again.
    Unknown {
        /// The reason, for operators.
        why: ParticipantDoubt,
    },
}

/// Why an outcome is not known. No text shows the URL, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParticipantDoubt {
    /// The configuration has no participant of this name.
    #[error("the configuration has no [participants] entry of this name")]
    Unconfigured,
    /// No whole answer came, or it was longer than [`ANSWER_BYTES_MAX`].
    #[error("{0}")]
    Unanswered(String),
    /// Any status but 200.
    #[error("it answered {0}, must be 200")]
    Status(u16),
    /// The body is no JSON object.
    #[error("its answer is no JSON object")]
    NotJson,
    /// The body has no field `outcome`, two of them, or an unknown value in it.
    #[error("its answer must have one field outcome, done or refused")]
    NoOutcome,
    /// A refusal without a valid code.
    #[error("its refusal must have a code, 1 to {CODE_BYTES_MAX} of A-Z a-z 0-9 _ . -")]
    NoCode,
    /// A refusal of an action that cannot be refused.
    #[error("it refused, but this action cannot be refused")]
    MayNotRefuse,
}

/// The configuration has a secret that is not one of Standard Webhooks. The load refuses it too.
#[derive(Debug, thiserror::Error)]
#[error("the secret of participant {name} is not a secret of Standard Webhooks")]
pub struct ParticipantSecretError {
    name: String,
    source: standardwebhooks::WebhookError,
}

impl Participants {
    /// The participants of a loaded configuration.
    ///
    /// # Errors
    /// [`ParticipantSecretError`].
    pub fn new(
        config: &Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Participants, ParticipantSecretError> {
        let timeout = Duration::from_millis(config.transactions.participant_timeout_ms);
        let agent = endpoint::agent(timeout);
        let mut known = BTreeMap::new();
        for (name, participant) in &config.participants {
            let valid = "checked by the load of the configuration";
            let url = participant.url.clone().expect(valid);
            let secret = participant.secret.as_ref().expect(valid);
            let endpoint = Endpoint::new(agent.clone(), url, secret).map_err(|source| {
                let name = name.clone();
                ParticipantSecretError { name, source }
            })?;
            let kind = participant.kind.expect(valid);
            known.insert(name.clone(), Known { kind, endpoint: Arc::new(endpoint) });
        }
        Ok(Participants { known, clock })
    }

    /// The kind of a participant; `None`: the configuration has none of this name.
    pub fn kind(&self, name: &str) -> Option<ParticipantKind> {
        self.known.get(name).map(|known| known.kind)
    }

    /// Asks once. It ends within `transactions.participant_timeout_ms`. If the future is dropped,
    /// the request may still arrive.
    pub async fn call(&self, name: &str, call: &ParticipantCall) -> ParticipantOutcome {
        let asked = match self.known.get(name) {
            Some(known) => self.ask(known, call).await,
            None => Err(ParticipantDoubt::Unconfigured),
        };
        let outcome = asked.unwrap_or_else(|why| ParticipantOutcome::Unknown { why });
        telemetry::participant_request(name, call.action.name(), outcome.name());
        outcome
    }

    async fn ask(
        &self,
        known: &Known,
        call: &ParticipantCall,
    ) -> Result<ParticipantOutcome, ParticipantDoubt> {
        let (endpoint, action) = (Arc::clone(&known.endpoint), call.action);
        let (id, now_s) = (call.webhook_id(), self.clock.now_s());
        let body = serde_json::to_string(call).expect("plain values");
        let (sender, answer) = oneshot::channel();
        // A thread of its own: a participant that hangs blocks neither the runtime nor its stop.
        let post = move || {
            let asked = post(&endpoint, &id, now_s, &body)
                .and_then(|answer| ParticipantOutcome::read(action, &answer));
            // The caller may have given up.
            sender.send(asked).ok();
        };
        let unsent = |why: &dyn fmt::Display| ParticipantDoubt::Unanswered(why.to_string());
        let thread = thread::Builder::new().name("participant".to_owned());
        thread.spawn(post).map_err(|error| unsent(&error))?;
        answer.await.map_err(|error| unsent(&error))?
    }
}

/// Posts once, and returns the body of a 200.
fn post(
    endpoint: &Endpoint,
    id: &str,
    now_s: u64,
    body: &str,
) -> Result<Vec<u8>, ParticipantDoubt> {
    let unanswered = |error: EndpointError| ParticipantDoubt::Unanswered(error.to_string());
    let answer = endpoint.post(id, now_s, body).map_err(unanswered)?;
    if answer.status != 200 {
        return Err(ParticipantDoubt::Status(answer.status));
    }
    answer.read(ANSWER_BYTES_MAX).map_err(unanswered)
}

impl ParticipantAction {
    /// Every action.
    pub const ALL: [ParticipantAction; 4] = [
        ParticipantAction::Try,
        ParticipantAction::Confirm,
        ParticipantAction::Cancel,
        ParticipantAction::Commit,
    ];

    /// Its name in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ParticipantAction::Try => "try",
            ParticipantAction::Confirm => "confirm",
            ParticipantAction::Cancel => "cancel",
            ParticipantAction::Commit => "commit",
        }
    }

    /// Whether a participant may refuse it.
    pub fn may_be_refused(self) -> bool {
        matches!(self, ParticipantAction::Try | ParticipantAction::Commit)
    }
}

impl Serialize for ParticipantAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl ParticipantCall {
    /// The `webhook-id`: `branch_id:action:round`, the same for each repeat. With the round,
    /// because a participant that drops known ids would answer round 2 as round 1.
    pub fn webhook_id(&self) -> String {
        format!("{}:{}:{}", self.branch_id, self.action.name(), self.round)
    }
}

impl ParticipantOutcome {
    /// Its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            ParticipantOutcome::Done => "done",
            ParticipantOutcome::Refused { .. } => "refused",
            ParticipantOutcome::Unknown { .. } => "unknown",
        }
    }

    /// Reads the body of a 200. Other fields than `outcome` may be unknown or doubled.
    fn read(
        action: ParticipantAction,
        body: &[u8],
    ) -> Result<ParticipantOutcome, ParticipantDoubt> {
        let said: Said = serde_json::from_slice(body).map_err(|_| ParticipantDoubt::NotJson)?;
        match said.outcomes.as_slice() {
            [Value::String(outcome)] if outcome == "done" => Ok(ParticipantOutcome::Done),
            [Value::String(outcome)] if outcome == "refused" => {
                if !action.may_be_refused() {
                    return Err(ParticipantDoubt::MayNotRefuse);
                }
                let code = said.code.as_ref().and_then(Value::as_str);
                let code = code.filter(|code| is_code(code)).ok_or(ParticipantDoubt::NoCode)?;
                Ok(ParticipantOutcome::Refused { code: code.to_owned() })
            }
            _ => Err(ParticipantDoubt::NoOutcome),
        }
    }
}

fn is_code(text: &str) -> bool {
    (1..=CODE_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn displayed<S: Serializer>(id: &ReqId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// The fields of an answer that count, as often as they stand in it.
#[derive(Default)]
struct Said {
    outcomes: Vec<Value>,
    code: Option<Value>,
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Said, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Said;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("an object with an outcome")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Said, A::Error> {
                let mut said = Said::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "outcome" => said.outcomes.push(map.next_value()?),
                        "code" => said.code = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(said)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only a clear outcome is one. Method: the table of bodies, for each action.
    #[test]
    fn only_a_clear_outcome_is_one() {
        let done = Ok(ParticipantOutcome::Done);
        let refused = |code: &str| Ok(ParticipantOutcome::Refused { code: code.to_owned() });
        let long = format!(r#"{{"outcome":"refused","code":"{}"}}"#, "x".repeat(65));
        for (body, expected) in [
            (r#"{"outcome":"done"}"#, done.clone()),
            (r#" {"outcome":"done","code":7,"x":{"outcome":"refused"},"x":1} "#, done),
            (r#"{"code":"A","outcome":"refused","code":"SOLD_OUT.2-b"}"#, refused("SOLD_OUT.2-b")),
            (r#"{"outcome":"refused"}"#, Err(ParticipantDoubt::NoCode)),
            (r#"{"outcome":"refused","code":""}"#, Err(ParticipantDoubt::NoCode)),
            (r#"{"outcome":"refused","code":"a b"}"#, Err(ParticipantDoubt::NoCode)),
            (r#"{"outcome":"refused","code":["A"]}"#, Err(ParticipantDoubt::NoCode)),
            (&long, Err(ParticipantDoubt::NoCode)),
            (r#"{"outcome":"DONE"}"#, Err(ParticipantDoubt::NoOutcome)),
            (r#"{"outcome":true}"#, Err(ParticipantDoubt::NoOutcome)),
            (r#"{"Outcome":"done"}"#, Err(ParticipantDoubt::NoOutcome)),
            (r#"{"outcome":"done","outcome":"done"}"#, Err(ParticipantDoubt::NoOutcome)),
            ("{}", Err(ParticipantDoubt::NoOutcome)),
            ("", Err(ParticipantDoubt::NotJson)),
            ("done", Err(ParticipantDoubt::NotJson)),
            (r#"["outcome","done"]"#, Err(ParticipantDoubt::NotJson)),
            (r#"{"outcome":"done"} x"#, Err(ParticipantDoubt::NotJson)),
            (r#"{"outcome":"done""#, Err(ParticipantDoubt::NotJson)),
        ] {
            for action in ParticipantAction::ALL {
                let expected = match &expected {
                    Ok(ParticipantOutcome::Refused { .. }) | Err(ParticipantDoubt::NoCode)
                        if !action.may_be_refused() =>
                    {
                        Err(ParticipantDoubt::MayNotRefuse)
                    }
                    expected => expected.clone(),
                };
                let read = ParticipantOutcome::read(action, body.as_bytes());
                assert_eq!(read, expected, "{action:?} {body}");
            }
        }
    }
}
