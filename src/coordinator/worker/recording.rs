//! External operations that PostgreSQL has decided and whose record in UBSCore's log is not known to be durable.
//!
//! No caller has an answer before the record is durable. A record that finds no place, or whose answer is lost, is asked for
//! again for ever. Until it is durable its order number is under way, so that the watermark does not pass it. A process that
//! dies in between leaves a row without a record: the next start writes the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{error, warn};

use super::queued::{Queued, Waiter};
use super::{Asking, Told, Worker, ns};
use crate::adapters::{Adapter, Outcome, Reason};
use crate::alert::{Alert, alert_about};
use crate::coordinator::request::{ExternalDecided, Rejection};
use crate::crash;
use crate::postgres::store::{Call, External, Reply};
use domain::amount::{PRECISION_MAX, units_from_text};
use domain::code::Code;
use domain::transfer::{Cid, ExternalOperation};

/// Records asked for at once.
const RECORDS_AT_ONCE: usize = 64;

/// How a caller of an external operation is answered.
pub(super) type ExternalReply = oneshot::Sender<Result<ExternalDecided, Rejection>>;

/// By order number.
#[derive(Default)]
pub(super) struct Recordings(BTreeMap<u64, Recording>);

struct Recording {
    operation: ExternalOperation,
    /// What the callers are told once it is recorded.
    decided: ExternalDecided,
    /// This process has given it its order number, so that UBSCore cannot have forgotten it.
    fresh: bool,
    /// The callers, each with the time until which it waits, monotonic ns.
    waiting: Vec<(u64, ExternalReply)>,
    tries: u32,
    /// When it is asked for, monotonic ns; `None` while the question is on its way.
    due: Option<u64>,
}

impl Recordings {
    /// Whether a caller waits for one.
    pub(super) fn are_awaited(&self) -> bool {
        self.0.values().any(|recording| !recording.waiting.is_empty())
    }

    /// When the next one is to be asked for, monotonic ns; `u64::MAX` for never.
    pub(super) fn due_ns(&self) -> u64 {
        self.0.values().filter_map(|recording| recording.due).min().unwrap_or(u64::MAX)
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Goes on with what the store says of an external operation. `number`: the order number that this call has taken.
    pub(super) fn on_external(
        &mut self,
        queued: Queued,
        external: &External,
        (decided, stored): (ExternalDecided, Option<u64>),
    ) {
        let number = external.order_number;
        if stored != Some(number) {
            // A repeat: the row has the number of the first call.
            self.under_way.remove(&number);
        }
        let deadline_ns = queued.deadline_ns;
        let reply = match queued.waiter {
            Waiter::External(reply) => Some(reply),
            _ => None,
        };
        let Some(order_number) = stored else {
            // A row of an earlier version, which had no records.
            if let Some(reply) = reply {
                drop(reply.send(Ok(decided)));
            }
            return;
        };
        let balance_after = match &decided.balance_after {
            Some(text) => units_from_text(text, PRECISION_MAX),
            None => Some(0),
        };
        let (Some(idem_key), Some(balance_after)) = (Cid::new(&external.idem_key), balance_after)
        else {
            error!(?external, ?decided, "a row of external_operations cannot be recorded");
            if let Some(reply) = reply {
                drop(reply.send(Err(Rejection::unknown())));
            }
            return;
        };
        let recording = self.recordings.0.entry(order_number).or_insert_with(|| Recording {
            operation: ExternalOperation {
                op: external.op,
                idem_key,
                user: external.user,
                asset: external.asset,
                amount: external.amount,
                order_number,
                decision: decided.decision,
                balance_after,
            },
            decided,
            fresh: order_number == number,
            waiting: Vec::new(),
            tries: 0,
            due: Some(0),
        });
        recording.waiting.extend(reply.map(|reply| (deadline_ns, reply)));
    }

    /// Looks for an external operation whose commit is unknown and whose caller was given up: its row needs its record.
    pub(super) fn look_for_external(&mut self, external: External) {
        self.enqueue(Queued::own(Call::FindExternal(external), Waiter::LostExternal));
    }

    /// A question to UBSCore for everything that is due to be recorded.
    pub(super) fn record(&mut self) -> Option<Asking> {
        let now = self.now();
        let due = |recording: &&mut Recording| recording.due.is_some_and(|due| due <= now);
        let mut operations = Vec::new();
        for recording in self.recordings.0.values_mut().filter(due).take(RECORDS_AT_ONCE) {
            recording.due = None;
            operations.push(recording.operation.clone());
        }
        if operations.is_empty() {
            return None;
        }
        let parts = Arc::clone(&self.parts);
        Some(Box::pin(async move {
            crash::point("external_before_record");
            let numbers: Vec<u64> = operations.iter().map(|one| one.order_number).collect();
            let answers = parts.spot.record(operations).await;
            crash::point("external_after_record");
            Told::Recorded(numbers.into_iter().zip(answers).collect())
        }))
    }

    /// Answers the callers of what is recorded; asks again for what may not be.
    pub(super) fn on_recorded(&mut self, number: u64, outcome: Outcome) {
        let (now, Some(recording)) = (self.now(), self.recordings.0.get_mut(&number)) else {
            return;
        };
        let recorded = match outcome {
            outcome if outcome.decision().is_some() => true,
            // Below the watermark everything has been recorded.
            Outcome::Unknown(Reason::Forgotten) if !recording.fresh => true,
            Outcome::Unknown(Reason::Forgotten | Reason::Violation | Reason::Malformed) => false,
            other => {
                recording.tries = recording.tries.saturating_add(1);
                let (tries, idem_key) = (recording.tries, recording.operation.idem_key.clone());
                let delay_ms = self.backoff_ms(tries);
                let (idem_key, outcome) = (idem_key.as_str(), other.name());
                warn!(idem_key, outcome, tries, delay_ms, "the record is asked for again");
                if let Some(recording) = self.recordings.0.get_mut(&number) {
                    recording.due = Some(now + ns(delay_ms));
                }
                return;
            }
        };
        self.under_way.remove(&number);
        let Some(Recording { operation, decided, waiting, .. }) = self.recordings.0.remove(&number)
        else {
            return;
        };
        if !recorded {
            let idem_key = operation.idem_key.as_str();
            let what = format_args!(
                "external operation {idem_key}: UBSCore has another record of it ({}); PostgreSQL may have gone back",
                outcome.name()
            );
            alert_about(Alert::ProtocolViolation, &idem_key, what);
        }
        for (_, reply) in waiting {
            // An error is a caller who has gone.
            drop(reply.send(match recorded {
                true => Ok(decided.clone()),
                false => Err(Rejection::unknown()),
            }));
        }
    }

    /// Answers callers who have waited long enough. What they asked for is recorded all the same.
    pub(super) fn expire_recordings(&mut self) {
        let now = self.now();
        for recording in self.recordings.0.values_mut() {
            if recording.waiting.iter().all(|(deadline_ns, _)| *deadline_ns > now) {
                continue;
            }
            let (late, waiting) = std::mem::take(&mut recording.waiting)
                .into_iter()
                .partition(|(deadline_ns, _)| *deadline_ns <= now);
            recording.waiting = waiting;
            let late: Vec<(u64, ExternalReply)> = late;
            for (_, reply) in late {
                drop(reply.send(Err(Rejection::unknown())));
            }
        }
    }

    /// What the store says of a call of an external operation.
    pub(super) fn on_external_reply(&mut self, queued: Queued, reply: Reply) {
        let (external, refusal) = match queued.call.clone() {
            Call::External(external) if queued.held => (external, Code::WithdrawalHeld),
            Call::External(external) => (external, Code::ServiceHalted),
            Call::FindExternal(external) => (external, Code::Overloaded),
            call => unreachable!("{call:?} is no external operation"),
        };
        match reply {
            Reply::External { conflict: true, .. } => {
                self.under_way.remove(&external.order_number);
                queued.waiter.reject(Rejection::of(Code::IdemKeyConflict));
            }
            Reply::External { decision, balance_after, order_number, .. } => {
                let decided = ExternalDecided { decision, balance_after };
                self.on_external(queued, &external, (decided, order_number));
            }
            // Held, halted, without room, or given up: nothing was decided.
            Reply::Found(_) => {
                self.under_way.remove(&external.order_number);
                queued.waiter.reject(Rejection::of(refusal));
            }
            reply => unreachable!("{reply:?} answers another call"),
        }
    }
}
