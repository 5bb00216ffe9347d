//! `ubscore participant check`: tries the duties of a participant on a running one.
//!
//! Each duty has a fresh branch. Its id begins with `check-`, so that the participant can tell it
//! from a branch of a transaction. Its steps are calls in an order that a kill, a lost answer or a
//! late request can cause, each with the only outcomes that keep the money right.

mod duty;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::{Value, json};

use self::duty::{Ask, Duty, Step};
use crate::cli::{ParticipantCheckArgs, ParticipantCommand};
use crate::clock::{Clock, SystemClock};
use crate::config::participants::ParticipantKind;
use crate::config::secret::Secret;
use crate::config::{Config, Overrides};
use crate::entropy::{Entropy, SystemEntropy};
use crate::exit::Exit;
use crate::format::Format;
use crate::participant::{
    ParticipantAction, ParticipantCall, ParticipantDoubt, ParticipantOutcome, Participants,
};
use domain::transfer::ReqId;

/// The beginning of the `tx_id` and `branch_id` of every call of a check.
pub const PREFIX: &str = "check-";
/// A key that no participant may accept: "the key of a stranger, 32 bytes." in base64.
const STRANGER: &str = "whsec_dGhlIGtleSBvZiBhIHN0cmFuZ2VyLCAzMiBieXRlcy4=";

/// Runs one of the commands. Results go to `out`.
///
/// # Errors
/// The configuration is wrong or has no such participant, or no request reaches it.
pub fn run(command: &ParticipantCommand, out: &mut impl Write) -> anyhow::Result<Exit> {
    match command {
        ParticipantCommand::Check(args) => check(args, out),
    }
}

fn check(args: &ParticipantCheckArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let config = Config::load(args.config.as_deref(), Overrides::default(), args.dev)
        .context("load the configuration")?;
    let name = args.name.as_str();
    let Some(kind) = config.participants.get(name).and_then(|entry| entry.kind) else {
        let known: Vec<&str> = config.participants.keys().map(String::as_str).collect();
        bail!("no participant {name} in the configuration; it has: {}", known.join(", "));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut checker = Checker::new(&config, args)?;
    let mut findings = Vec::new();
    for duty in duty::of(kind) {
        if !checker.can_try(duty) {
            continue;
        }
        let finding = runtime.block_on(checker.attempt(kind, duty, findings.is_empty()))?;
        print(&finding, args.format, out)?;
        findings.push(finding);
    }
    let bad = findings.iter().filter(|finding| finding.found.is_some()).count();
    if args.format == Format::Text {
        writeln!(out, "{} ok, {bad} bad", findings.len() - bad)?;
    }
    Ok(if bad == 0 { Exit::Done } else { Exit::Failed })
}

/// A duty that was tried.
#[derive(Serialize)]
struct Tried {
    duty: &'static str,
    verdict: &'static str,
    demand: &'static str,
    /// How it failed.
    found: Option<String>,
    /// The change that the participant needs.
    change: Option<&'static str>,
}

fn print(finding: &Tried, format: Format, out: &mut impl Write) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            writeln!(out, "{}", serde_json::to_string(finding).expect("plain values"))?;
        }
        Format::Text => {
            let Tried { duty, verdict, demand, found, change } = finding;
            let width = duty::NAME_WIDTH;
            writeln!(out, "{verdict:<4}  {duty:<width$}  {demand}")?;
            if let Some(found) = found {
                writeln!(out, "      {:width$}  {found}", "")?;
            }
            if let Some(change) = change {
                writeln!(out, "      {:width$}  -> {change}", "")?;
            }
        }
    }
    Ok(())
}

/// The failure of a step.
enum Failure {
    /// The duty is not kept: the sentence about it.
    Duty(String),
    /// No answer came, which says nothing about duties.
    Silent(ParticipantDoubt),
}

/// The participant, and the payloads that it is asked with.
struct Checker {
    name: String,
    own: Participants,
    stranger: Participants,
    entropy: SystemEntropy,
    clock: Arc<SystemClock>,
    payload: Value,
    refused_payload: Option<Value>,
}

impl Checker {
    fn new(config: &Config, args: &ParticipantCheckArgs) -> anyhow::Result<Checker> {
        let clock = Arc::new(SystemClock::new());
        let mut strange = config.clone();
        for participant in strange.participants.values_mut() {
            participant.secret = Some(Secret::new(STRANGER));
        }
        Ok(Checker {
            name: args.name.clone(),
            own: Participants::new(config, Arc::clone(&clock) as Arc<dyn Clock>)?,
            stranger: Participants::new(&strange, Arc::clone(&clock) as Arc<dyn Clock>)?,
            entropy: SystemEntropy::default(),
            clock,
            payload: args.payload.clone().unwrap_or_else(|| json!({})),
            refused_payload: args.refused_payload.clone(),
        })
    }

    /// Whether the arguments have the payloads that a duty needs.
    fn can_try(&self, duty: &Duty) -> bool {
        let needs = duty.steps.iter().any(|step| step.ask == Ask::Refusable);
        !needs || self.refused_payload.is_some()
    }

    /// Tries one duty on fresh branches. `is_first`: no answer has come yet.
    async fn attempt(
        &mut self,
        kind: ParticipantKind,
        duty: &Duty,
        is_first: bool,
    ) -> anyhow::Result<Tried> {
        let id = ReqId::generate(self.clock.now_ns(), self.entropy.u128());
        let found = match self.walk(id, duty.steps, is_first).await {
            Ok(()) => None,
            Err(Failure::Silent(why)) => bail!("participant {} cannot be asked: {why}", self.name),
            Err(Failure::Duty(found)) => {
                // Frees the resources of a failed duty, if the participant can do that.
                let rounds: BTreeSet<u16> = duty.steps.iter().map(|step| step.round).collect();
                for round in rounds.into_iter().filter(|_| kind == ParticipantKind::Veto) {
                    let payload = self.payload.clone();
                    let cancel = self.call(id, ParticipantAction::Cancel, round, payload);
                    self.own.call(&self.name, &cancel).await;
                }
                Some(found)
            }
        };
        let verdict = if found.is_none() { "ok" } else { "bad" };
        let change = found.is_some().then_some(duty.change);
        Ok(Tried { duty: duty.name, verdict, demand: duty.demand, found, change })
    }

    fn call(
        &self,
        id: ReqId,
        action: ParticipantAction,
        round: u16,
        payload: Value,
    ) -> ParticipantCall {
        ParticipantCall {
            tx_id: format!("{PREFIX}{id}"),
            transaction_id: id,
            branch_id: format!("{PREFIX}{id}:{}:{round}", self.name),
            action,
            round,
            payload,
        }
    }

    /// Takes all steps until the first wrong outcome.
    async fn walk(&self, id: ReqId, steps: &[Step], is_first: bool) -> Result<(), Failure> {
        let mut past: Vec<(Step, ParticipantOutcome)> = Vec::new();
        for step in steps {
            let payload = match step.ask {
                Ask::OtherPayload => other(&self.payload),
                Ask::Refusable => self.refused_payload.clone().expect("checked by can_try"),
                Ask::Plain | Ask::Unsigned | Ask::Twice => self.payload.clone(),
            };
            let call = self.call(id, step.action, step.round, payload);
            let asked = match step.ask {
                Ask::Unsigned => self.stranger.call(&self.name, &call).await,
                Ask::Twice => self.twice(&call).await?,
                Ask::Plain | Ask::OtherPayload | Ask::Refusable => {
                    self.own.call(&self.name, &call).await
                }
            };
            if let ParticipantOutcome::Unknown { why } = &asked
                && matches!(why, ParticipantDoubt::Unanswered(_))
                && is_first
                && past.is_empty()
            {
                return Err(Failure::Silent(why.clone()));
            }
            let is_same = |past: &Step| (past.action, past.round) == (step.action, step.round);
            let earlier = past.iter().find(|(past, _)| is_same(past));
            if !step.expected.holds(&asked, earlier.map(|(_, outcome)| outcome)) {
                return Err(Failure::Duty(complaint(&past, step, &asked)));
            }
            past.push((*step, asked));
        }
        Ok(())
    }

    /// Asks twice at the same time. One of them may be turned away without an outcome.
    async fn twice(&self, call: &ParticipantCall) -> Result<ParticipantOutcome, Failure> {
        let ask = || self.own.call(&self.name, call);
        let both = futures_util::future::join(ask(), ask()).await;
        let is_known =
            |outcome: &ParticipantOutcome| !matches!(outcome, ParticipantOutcome::Unknown { .. });
        match both {
            (one, other) if one == other || !is_known(&other) => Ok(one),
            (one, other) if !is_known(&one) => Ok(other),
            (one, other) => {
                let action = call.action.name();
                let (one, other) = (text(&one), text(&other));
                Err(Failure::Duty(format!("two {action} at once were answered {one} and {other}")))
            }
        }
    }
}

/// A payload that differs from a given one.
fn other(payload: &Value) -> Value {
    match payload {
        Value::Object(fields) => {
            let mut fields = fields.clone();
            fields.insert("ubscore_check".to_owned(), json!("another payload"));
            Value::Object(fields)
        }
        payload => json!([payload, "another payload"]),
    }
}

fn text(outcome: &ParticipantOutcome) -> String {
    match outcome {
        ParticipantOutcome::Done => "done".to_owned(),
        ParticipantOutcome::Refused { code } => format!("refused {code}"),
        ParticipantOutcome::Unknown { why } => format!("without an outcome ({why})"),
    }
}

fn complaint(
    past: &[(Step, ParticipantOutcome)],
    step: &Step,
    found: &ParticipantOutcome,
) -> String {
    let mut before = String::new();
    for (step, outcome) in past {
        before += &format!("{} was answered {}, then ", step.words(), text(outcome));
    }
    format!(
        "{before}{} was answered {}; must be {}",
        step.words(),
        text(found),
        step.expected.words()
    )
}
