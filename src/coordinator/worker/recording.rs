//! External operations that PostgreSQL has decided. Their records in UBSCore's log may not be
//! durable yet.
//!
//! No caller has an answer before the record is durable. If a record finds no place, or its answer
//! is lost, it is asked for again without an end. Until it is durable its order number is under
//! way, so that the watermark does not pass it. A process that dies in between leaves a row without
//! a record: the next start writes the record.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{error, warn};

use super::queue::{Queued, Ticket};
use super::reply::{Caller, ReplyTo};
use super::{Asking, Told, Worker, ns};
use crate::adapters::{Adapter, Outcome, Reason};
use crate::alert::{Alert, alert_about};
use crate::coordinator::request::{ExternalDecided, Rejection};
use crate::crash;
use crate::postgres::store::{Call, External, Reply};
use crate::recharge::act::{RechargeOutcome, RechargeReply};
use domain::code::Code;
use domain::transfer::{Cid, ExternalOperation};

/// Records asked for at once.
const RECORDS_AT_ONCE: usize = 64;

/// A caller of an external operation, or of an act that has one.
enum RecordCaller {
    External(Caller<ExternalDecided>),
    /// One of the records that the answer to a Settle, or to an act on a recharge, waits for.
    Settle(Arc<Mutex<SettleCaller>>),
}

/// The caller of such a call, with its answer and the number of records that it still waits for.
struct SettleCaller {
    caller: Option<Caller<Reply>>,
    reply: Reply,
    left: usize,
}

impl SettleCaller {
    /// One of its records is durable, or never will be.
    fn recorded(&mut self, answer: Result<ExternalDecided, Rejection>) {
        self.left -= 1;
        let answer = match answer {
            Ok(_) if self.left > 0 => return,
            Ok(_) => Ok(self.reply.clone()),
            Err(rejection) => Err(rejection),
        };
        if let Some(caller) = self.caller.take() {
            caller.answer(answer);
        }
    }
}

impl RecordCaller {
    fn answer(self, answer: Result<ExternalDecided, Rejection>) {
        match self {
            RecordCaller::External(caller) => caller.answer(answer),
            RecordCaller::Settle(caller) => caller.lock().recorded(answer),
        }
    }
}

/// By order number.
#[derive(Default)]
pub(super) struct Recordings(BTreeMap<u64, Recording>);

struct Recording {
    operation: ExternalOperation,
    /// The answer after the record.
    decided: ExternalDecided,
    /// This process has given it its order number, so UBSCore cannot have forgotten it.
    fresh: bool,
    /// The callers, each with the end of its wait, monotonic ns.
    waiting: Vec<(u64, RecordCaller)>,
    tries: u32,
    /// When it is asked for, monotonic ns; `None` while the question is on its way.
    due: Option<u64>,
}

/// The meaning of an answer about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// It is durable.
    Yes,
    /// UBSCore has another record under its name, or refuses this one for good.
    Never,
    /// It may be durable or not. Ask again.
    Unknown,
}

impl Recorded {
    fn of(outcome: Outcome, fresh: bool) -> Recorded {
        match outcome {
            outcome if outcome.decision().is_some() => Recorded::Yes,
            // Below the watermark everything has been recorded.
            Outcome::Unknown(Reason::Forgotten) if !fresh => Recorded::Yes,
            Outcome::Unknown(Reason::Forgotten | Reason::Violation | Reason::Malformed) => {
                Recorded::Never
            }
            _ => Recorded::Unknown,
        }
    }
}

impl Recordings {
    /// Adds an operation, or one more caller of an operation that waits for its record.
    fn add(
        &mut self,
        operation: ExternalOperation,
        decided: ExternalDecided,
        fresh: bool,
        caller: Option<(u64, RecordCaller)>,
    ) {
        let recording = self.0.entry(operation.order_number).or_insert_with(|| Recording {
            operation,
            decided,
            fresh,
            waiting: Vec::new(),
            tries: 0,
            due: Some(0),
        });
        recording.waiting.extend(caller);
    }

    /// Whether a caller waits for a record.
    pub(super) fn are_awaited(&self) -> bool {
        self.0.values().any(|recording| !recording.waiting.is_empty())
    }

    /// When the next one is to be asked for, monotonic ns; `u64::MAX` for never.
    pub(super) fn due_ns(&self) -> u64 {
        self.0.values().filter_map(|recording| recording.due).min().unwrap_or(u64::MAX)
    }

    /// The operations that are due; they count as asked for.
    fn take_due(&mut self, now: u64) -> Vec<ExternalOperation> {
        let is_due = |recording: &&mut Recording| recording.due.is_some_and(|due| due <= now);
        let due = self.0.values_mut().filter(is_due).take(RECORDS_AT_ONCE);
        let asked = |recording: &mut Recording| {
            recording.due = None;
            recording.operation.clone()
        };
        due.map(asked).collect()
    }

    /// Removes the callers that have waited long enough.
    fn expire(&mut self, now: u64) -> Vec<RecordCaller> {
        let mut expired = Vec::new();
        for recording in self.0.values_mut() {
            let waiting = std::mem::take(&mut recording.waiting);
            let (late, waiting): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|(deadline_ns, _)| *deadline_ns <= now);
            recording.waiting = waiting;
            expired.extend(late.into_iter().map(|(_, caller)| caller));
        }
        expired
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// The store's reply to a call of an external operation.
    pub(super) fn on_external_reply(&mut self, queued: Queued, reply: Reply) {
        let (external, refusal) = match queued.call.clone() {
            Call::External(external) if queued.ticket.held => (external, Code::WithdrawalHeld),
            Call::External(external) => (external, Code::ServiceHalted),
            Call::FindExternal(external) => (external, Code::Overloaded),
            call => unreachable!("{call:?} is no external operation"),
        };
        match reply {
            Reply::External { conflict: true, .. } => {
                self.under_way.remove(&external.order_number);
                queued.ticket.reply_to.reject(Rejection::of(Code::IdemKeyConflict));
            }
            Reply::External { decision, balance_after, order_number, .. } => {
                let decided = ExternalDecided { decision, balance_after };
                self.on_external(queued, &external, decided, order_number);
            }
            // Held, halted, without room, or given up: nothing was decided.
            Reply::Found(_) => {
                self.under_way.remove(&external.order_number);
                queued.ticket.reply_to.reject(Rejection::of(refusal));
            }
            reply => unreachable!("{reply:?} answers another call"),
        }
    }

    /// Goes on with a decided external operation. `stored`: the order number of its row.
    fn on_external(
        &mut self,
        queued: Queued,
        external: &External,
        decided: ExternalDecided,
        stored: u64,
    ) {
        let number = external.order_number;
        if stored != number {
            // A repeat: the row has the number of the first call.
            self.under_way.remove(&number);
        }
        let caller = match queued.ticket.reply_to {
            ReplyTo::External(caller) => Some(caller),
            _ => None,
        };
        let Some(idem_key) = Cid::of_operation(&external.idem_key) else {
            error!(?external, ?decided, "a row of external_operations cannot be recorded");
            if let Some(caller) = caller {
                caller.answer(Err(Rejection::unknown()));
            }
            return;
        };
        let operation = ExternalOperation {
            op: external.op,
            idem_key,
            user: external.user,
            asset: external.asset,
            amount: external.amount,
            order_number: stored,
            decision: decided.decision,
            // The log has no sign: a special balance below zero is 0 there.
            balance_after: decided
                .balance_after
                .map_or(0, |units| u128::try_from(units).unwrap_or(0)),
        };
        let caller =
            caller.map(|caller| (queued.ticket.deadline_ns, RecordCaller::External(caller)));
        self.recordings.add(operation, decided, stored == number, caller);
    }

    /// The store's reply to an act on a recharge. A credit is answered behind its record, and so is
    /// a bonus beside it.
    pub(super) fn on_recharge_reply(&mut self, queued: Queued, reply: RechargeReply) {
        let numbers = match &queued.call {
            Call::Recharge(call) | Call::FindRecharge(call) => {
                [call.order_number, call.bonus_number]
            }
            call => unreachable!("{call:?} is no act on a recharge"),
        };
        let caller = match queued.ticket.reply_to {
            ReplyTo::Store(caller) => Some(caller),
            _ => None,
        };
        let operations: Vec<ExternalOperation> =
            [&reply.credit, &reply.bonus].into_iter().flatten().cloned().collect();
        let is_ours = |number: &u64| operations.iter().any(|one| one.order_number == *number);
        self.free(numbers.map(|number| if is_ours(&number) { 0 } else { number }));
        if operations.is_empty() {
            if let Some(caller) = caller {
                caller.answer(shown(reply, queued.ticket.maybe));
            }
            return;
        }
        let reply = Reply::Recharge(Box::new(reply));
        self.record_all((caller, queued.ticket.deadline_ns), numbers, operations, reply);
    }

    /// The store's reply to a Settle of a hold with money from or to the outside. It is answered
    /// behind the records of its external operations. `numbers`: given to this call.
    pub(super) fn on_settle_reply(&mut self, ticket: Ticket, numbers: [u64; 2], reply: Reply) {
        let caller = match ticket.reply_to {
            ReplyTo::Store(caller) => Some(caller),
            _ => None,
        };
        let operations = match &reply {
            Reply::Settled(operations) => operations.clone(),
            // Settled by an earlier version, or halted and not settled.
            Reply::Hold(_) | Reply::Found(_) => Vec::new(),
            reply => unreachable!("{reply:?} answers another call"),
        };
        let is_ours = |number: &u64| operations.iter().any(|one| one.order_number == *number);
        self.free(numbers.map(|number| if is_ours(&number) { 0 } else { number }));
        if operations.is_empty() {
            if let Some(caller) = caller {
                caller.answer(Ok(reply));
            }
            return;
        }
        self.record_all((caller, ticket.deadline_ns), numbers, operations, reply);
    }

    /// Has operations of one call recorded, and answers its caller behind the last record.
    fn record_all(
        &mut self,
        (caller, deadline_ns): (Option<Caller<Reply>>, u64),
        numbers: [u64; 2],
        operations: Vec<ExternalOperation>,
        reply: Reply,
    ) {
        let left = operations.len();
        let caller = caller.map(|caller| {
            Arc::new(Mutex::new(SettleCaller { caller: Some(caller), reply: reply.clone(), left }))
        });
        for operation in operations {
            let fresh = numbers.contains(&operation.order_number);
            let balance_after = i128::try_from(operation.balance_after).ok();
            let decided = ExternalDecided { decision: operation.decision, balance_after };
            let caller = caller.as_ref().map(|caller| RecordCaller::Settle(Arc::clone(caller)));
            let caller = caller.map(|caller| (deadline_ns, caller));
            self.recordings.add(operation, decided, fresh, caller);
        }
    }

    /// Asks UBSCore for every record that is due.
    pub(super) fn record(&mut self) -> Option<Asking> {
        let operations = self.recordings.take_due(self.now());
        if operations.is_empty() {
            return None;
        }
        let parts = Arc::clone(&self.parts);
        Some(Box::pin(async move {
            crash::point("external_before_record");
            let numbers: Vec<u64> = operations.iter().map(|one| one.order_number).collect();
            let answers = parts.spot.record(operations).await;
            crash::point("external_after_record");
            assert_eq!(answers.len(), numbers.len(), "answers for records");
            Told::Recorded(numbers.into_iter().zip(answers).collect())
        }))
    }

    /// Answers the callers of a durable record. Any other record is asked for again, or alerted.
    pub(super) fn on_recorded(&mut self, number: u64, outcome: Outcome) {
        let (now, Some(recording)) = (self.now(), self.recordings.0.get_mut(&number)) else {
            return;
        };
        let recorded = Recorded::of(outcome, recording.fresh);
        if recorded == Recorded::Unknown {
            recording.tries = recording.tries.saturating_add(1);
            let (tries, delay_ms) = (recording.tries, self.backoff.delay_ms(recording.tries));
            recording.due = Some(now + ns(delay_ms));
            let (idem_key, outcome) = (recording.operation.idem_key.as_str(), outcome.name());
            warn!(idem_key, outcome, tries, delay_ms, "the record is asked for again");
            return;
        }
        self.under_way.remove(&number);
        let Some(Recording { operation, decided, waiting, .. }) = self.recordings.0.remove(&number)
        else {
            return;
        };
        if recorded == Recorded::Never {
            let (idem_key, outcome) = (operation.idem_key.as_str(), outcome.name());
            let what = format_args!(
                "external operation {idem_key}: UBSCore has another record of it ({outcome}); \
                 PostgreSQL may have gone back"
            );
            alert_about(Alert::ProtocolViolation, &idem_key, what);
        }
        for (_, caller) in waiting {
            caller.answer(match recorded {
                Recorded::Yes => Ok(decided.clone()),
                Recorded::Never | Recorded::Unknown => Err(Rejection::unknown()),
            });
        }
    }

    /// Answers the callers that have waited long enough. Their operations are recorded all the
    /// same.
    pub(super) fn expire_recordings(&mut self) {
        for caller in self.recordings.expire(self.now()) {
            caller.answer(Err(Rejection::unknown()));
        }
    }
}

/// The answer for the caller of an act without a credit. `maybe`: it may have been written. Rows
/// that show nothing of such an act do not prove that nothing was done.
fn shown(reply: RechargeReply, maybe: bool) -> Result<Reply, Rejection> {
    match maybe && reply.outcome == RechargeOutcome::Nothing {
        true => Err(Rejection::unknown()),
        false => Ok(Reply::Recharge(Box::new(reply))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an act that may have been written is never told to be undone.
    #[test]
    fn nothing_found_of_an_act_that_may_be_written_is_unknown() {
        let nothing = || RechargeReply::plain(RechargeOutcome::Nothing);
        assert_eq!(shown(nothing(), true).expect_err("a doubt"), Rejection::unknown());
        assert!(shown(nothing(), false).is_ok());
        let refused = RechargeReply::refused(Code::RechargePaid, None);
        assert!(shown(refused, true).is_ok());
    }
    use domain::account::UserId;
    use domain::amount::Amount;
    use domain::asset::AssetId;
    use domain::transfer::{Decision, Op};

    fn operation(order_number: u64) -> ExternalOperation {
        ExternalOperation {
            op: Op::ExtDeposit,
            idem_key: Cid::new("key").expect("a key"),
            user: UserId::new(1).expect("an id"),
            asset: AssetId(1),
            amount: Amount::new(1).expect("not zero"),
            order_number,
            decision: Decision::Success,
            balance_after: 1,
        }
    }

    fn decided() -> ExternalDecided {
        ExternalDecided { decision: Decision::Success, balance_after: None }
    }

    /// A record is asked for once at a time, and by as many callers as there are.
    #[test]
    fn two_callers_of_one_operation_share_its_record() {
        let mut recordings = Recordings::default();
        let ((first, mut answer), (second, _kept)) = (Caller::new(), Caller::new());
        recordings.add(operation(7), decided(), true, Some((10, RecordCaller::External(first))));
        recordings.add(operation(7), decided(), false, Some((20, RecordCaller::External(second))));
        assert_eq!(recordings.due_ns(), 0);
        assert_eq!(recordings.take_due(0), [operation(7)]);
        assert_eq!(recordings.take_due(u64::MAX), [], "the question is on its way");
        assert_eq!(recordings.due_ns(), u64::MAX);

        let expired = recordings.expire(10);
        assert_eq!(expired.len(), 1);
        expired.into_iter().for_each(|caller| caller.answer(Err(Rejection::unknown())));
        assert_eq!(answer.try_recv().expect("answered"), Err(Rejection::unknown()));
        assert!(recordings.are_awaited());
        assert_eq!(recordings.expire(20).len(), 1);
        assert!(!recordings.are_awaited());
        assert_eq!(recordings.0.len(), 1, "it still needs its record");
    }

    /// UBSCore forgets only below the watermark, and a number of this process is above it.
    #[test]
    fn a_forgotten_record_is_durable_unless_its_number_is_new() {
        let of = Recorded::of;
        let forgotten = Outcome::Unknown(Reason::Forgotten);
        assert_eq!(of(forgotten, false), Recorded::Yes);
        assert_eq!(of(forgotten, true), Recorded::Never);
        for fresh in [false, true] {
            assert_eq!(of(Outcome::Success, fresh), Recorded::Yes);
            assert_eq!(of(Outcome::ExplicitFail(Code::AccountFrozen), fresh), Recorded::Yes);
            assert_eq!(of(Outcome::Unknown(Reason::Violation), fresh), Recorded::Never);
            assert_eq!(of(Outcome::Timeout, fresh), Recorded::Unknown);
            assert_eq!(of(Outcome::Unknown(Reason::Overloaded), fresh), Recorded::Unknown);
        }
    }
}
