//! The words in which the coordinator speaks to its store: batches of domain operations, never SQL.
//!
//! A [`Store`] commits a batch as one transaction. PostgreSQL is the one in production
//! ([`crate::postgres::database`]); a model stands behind the same trait in the simulation.

use std::future::Future;
use std::sync::Arc;

use jiff::Timestamp;
use wal::Sequence;

use crate::recharge::act::{RechargeCall, RechargeReply};
use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::code::Code;
use domain::hold::HoldOrder;
use domain::transfer::{Cid, Decision, ExternalOperation, Intent, Op, Participant, ReqId, State};

/// A transfer as the store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What was asked.
    pub intent: Intent,
    /// What a repeat of the cid must equal, see [`fingerprint`].
    pub fingerprint: String,
    /// Where it stands.
    pub state: State,
    /// Why it failed or is rolled back.
    pub code: Option<Code>,
    /// Tries of the present state that ended unknown.
    pub retry_count: u32,
    /// The log's record of UBSCore's last outcome for it.
    pub log_sequence: Option<Sequence>,
    /// The decision of Funding's part: the WITHDRAW of a transfer to Spot, or the DEPOSIT of a
    /// transfer from Spot. `None`: undecided.
    pub funding: Option<Decision>,
    /// Whether Funding has given the amount back.
    pub refunded: bool,
    /// When it was accepted, by the service's clock.
    pub created_at: Timestamp,
    /// When it last moved, by the service's clock.
    pub updated_at: Timestamp,
}

impl Transfer {
    /// A transfer that is accepted at this time, before anything is decided.
    pub fn new(intent: Intent, fingerprint: String, state: State, at: Timestamp) -> Transfer {
        Transfer {
            intent,
            fingerprint,
            state,
            code: None,
            retry_count: 0,
            log_sequence: None,
            funding: None,
            refunded: false,
            created_at: at,
            updated_at: at,
        }
    }

    /// The decision of an operation on Funding; `None`: undecided, or Spot decides it.
    pub fn on_funding(&self, op: Op) -> Option<Decision> {
        if op.is_external() || op.participant(self.intent.direction) != Participant::Funding {
            return None;
        }
        match op.row().undoes {
            Some(_) => self.refunded.then_some(Decision::Success),
            None => self.funding,
        }
    }

    /// Keeps the decision of an operation on Funding.
    pub fn decided(&mut self, op: Op, decision: Decision) {
        assert_eq!(op.participant(self.intent.direction), Participant::Funding, "{op}");
        match op.row().undoes {
            Some(_) => self.refunded = true,
            None => self.funding = Some(decision),
        }
    }
}

/// The body of a request in a form that compares as a value: from, to, asset and amount.
pub fn fingerprint(from: &str, to: &str, symbol: &str, amount: &str) -> String {
    format!("{from}:{to}:{symbol}:{amount}")
}

/// The fields in which two fingerprints differ.
pub fn differing_fields(one: &str, other: &str) -> Vec<&'static str> {
    let fields = ["from", "to", "asset", "amount"];
    // Text that was never checked may hold colons too: the last field has them, so that no difference is lost.
    let pairs = one.splitn(4, ':').zip(other.splitn(4, ':')).zip(fields);
    pairs.filter(|((left, right), _)| left != right).map(|(_, field)| field).collect()
}

/// The states one commit takes a transfer through: `path`, and then, where Funding takes part, those of its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionPath {
    /// Known beforehand; may be empty only where Funding takes part.
    pub path: Vec<State>,
    /// Funding's part in the same transaction.
    pub funding: Option<FundingPart>,
}

impl TransitionPath {
    /// Whether Funding is to refuse what it has not decided.
    pub fn refuses(&self) -> bool {
        self.funding.as_ref().is_some_and(|part| part.refuse)
    }
}

/// A Funding operation inside a [`TransitionPath`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FundingPart {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// The states of a success.
    pub on_success: Vec<State>,
    /// The states of a refusal; empty for REFUND, which has none.
    pub on_refused: Vec<State>,
    /// An operator ends the wait for it: it is refused, unless it has been decided before. Never for REFUND.
    pub refuse: bool,
}

/// What a shard knows of itself when a batch begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The highest log sequence that this process has seen durable.
    pub durable: Sequence,
    /// Every transfer of the shard that is under way, or will be, has this order number or a higher
    /// one. 0: not known yet.
    pub open_from: u64,
}

/// One domain operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Insert a transfer and take it through its first transition. Answers [`Reply::Transfer`], that of the same req_id
    /// or the same user's cid where there is one already.
    Accept {
        /// What is asked.
        intent: Intent,
        /// See [`fingerprint`].
        fingerprint: String,
        /// From nothing.
        transition: TransitionPath,
    },
    /// Compare-and-set a transfer through a transition. Answers [`Reply::Transfer`] as it stands then, moved by this
    /// call or by another before it.
    Step {
        /// The transfer as the worker holds it before the step. The row must have this state, or
        /// nothing moves.
        transfer: Box<Transfer>,
        /// Where it goes.
        transition: TransitionPath,
        /// Why UBSCore refused.
        code: Option<Code>,
        /// UBSCore's record.
        log_sequence: Option<Sequence>,
        /// Tries so far.
        attempt: u32,
    },
    /// Write down when a transfer is tried again. Answers [`Reply::Done`].
    Defer {
        /// Whose account.
        user: UserId,
        /// Which transfer.
        req_id: ReqId,
        /// Where it stands.
        state: State,
        /// Tries so far.
        retry_count: u32,
        /// From now, milliseconds.
        delay_ms: u64,
    },
    /// One Funding operation without a state change. Answers [`Reply::Operation`].
    Operate {
        /// WITHDRAW, DEPOSIT or REFUND.
        op: Op,
        /// Of which transfer.
        intent: Intent,
        /// See [`FundingPart::refuse`].
        refuse: bool,
    },
    /// Read what is recorded for a Funding operation. Answers [`Reply::Operation`].
    QueryOperation {
        /// Which transfer.
        req_id: ReqId,
        /// Which operation.
        op: Op,
    },
    /// Read a transfer. In a batch that is committed, the answer is the truth about every accept given up before.
    /// Answers [`Reply::Found`].
    Find(Sought),
    /// Move money between Funding and the outside. Answers [`Reply::External`].
    External(External),
    /// Read what was decided for an external operation, without carrying it out. In a batch that is committed, the answer
    /// is the truth about every try given up before. Answers [`Reply::External`], or [`Reply::Found`] with nothing.
    FindExternal(External),
    /// Act on a hold of Funding. Answers [`Reply::Hold`], or [`Reply::Settled`] if it moved money
    /// from or to the outside.
    Hold(HoldOrder),
    /// Read the decision of an act on a hold, without carrying it out. Answers as [`Call::Hold`],
    /// or [`Reply::Found`] with nothing.
    FindHold(HoldOrder),
    /// Act on a recharge. Answers [`Reply::Recharge`].
    Recharge(Box<RechargeCall>),
    /// Read the outcome of an act on a recharge, without carrying it out. In a batch that is
    /// committed, the answer is the truth about every try given up before. Answers
    /// [`Reply::Recharge`].
    FindRecharge(Box<RechargeCall>),
    /// Set a Funding account's status, with an audit row. Answers [`Reply::Done`].
    SetFundingStatus {
        /// Whose account.
        user: UserId,
        /// From now on.
        status: AccountStatus,
        /// Who says so.
        actor: String,
        /// Why.
        reason: String,
    },
}

/// How a transfer is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// By its own name.
    ReqId(ReqId),
    /// By its user's idempotency key.
    Cid(UserId, Cid),
}

/// Money that enters or leaves Funding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The caller's idempotency key, 1..=64 bytes.
    pub idem_key: String,
    /// EXT_DEPOSIT or EXT_WITHDRAW.
    pub op: Op,
    /// Whose account.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// Who says so.
    pub actor: String,
    /// Its position in the order of accepts. Given by the worker; 0 before.
    pub order_number: u64,
}

impl Call {
    /// The one transfer it is about, for logs.
    pub fn req_id(&self) -> Option<ReqId> {
        match self {
            Call::Accept { intent, .. } | Call::Operate { intent, .. } => Some(intent.req_id),
            Call::Step { transfer, .. } => Some(transfer.intent.req_id),
            Call::Defer { req_id, .. }
            | Call::QueryOperation { req_id, .. }
            | Call::Find(Sought::ReqId(req_id)) => Some(*req_id),
            Call::Find(Sought::Cid(..))
            | Call::External(_)
            | Call::FindExternal(_)
            | Call::Hold(_)
            | Call::FindHold(_)
            | Call::Recharge(_)
            | Call::FindRecharge(_)
            | Call::SetFundingStatus { .. } => None,
        }
    }

    /// Its name in traces.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Accept { .. } => "accept",
            Call::Step { .. } => "step",
            Call::Defer { .. } => "defer",
            Call::Operate { .. } => "operate",
            Call::QueryOperation { .. } => "query",
            Call::Find(_) | Call::FindExternal(_) | Call::FindHold(_) | Call::FindRecharge(_) => {
                "find"
            }
            Call::Recharge(_) => "recharge",
            Call::Hold(_) => "hold",
            Call::External(_) => "external",
            Call::SetFundingStatus { .. } => "set_status",
        }
    }

    /// Cuts a step that passes states before Funding takes part to those states; whether it was one.
    pub fn end_before_funding(&mut self) -> bool {
        match self {
            Call::Step { transition, .. } if !transition.path.is_empty() => {
                transition.funding.take().is_some()
            }
            _ => false,
        }
    }

    /// Whether it is a step in which Funding is to refuse what it has not decided.
    pub fn refuses(&self) -> bool {
        matches!(self, Call::Step { transition, .. } if transition.refuses())
    }

    /// The user whose rows it writes; `None` for a read.
    pub fn user(&self) -> Option<UserId> {
        match self {
            Call::Accept { intent, .. } | Call::Operate { intent, .. } => Some(intent.user),
            Call::Step { transfer, .. } => Some(transfer.intent.user),
            Call::External(External { user, .. })
            | Call::Defer { user, .. }
            | Call::Hold(HoldOrder { user, .. })
            | Call::SetFundingStatus { user, .. } => Some(*user),
            Call::Recharge(call) => call.user,
            Call::QueryOperation { .. }
            | Call::Find(_)
            | Call::FindExternal(_)
            | Call::FindHold(_)
            | Call::FindRecharge(_) => None,
        }
    }
}

/// The answer to one call of a committed batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The transfer as it stands.
    Transfer(Box<Transfer>),
    /// Done.
    Done,
    /// The transfer, if there is one.
    Found(Option<Box<Transfer>>),
    /// It was done, but what the store holds cannot be read.
    Unreadable(String),
    /// What is recorded for a Funding operation, if anything.
    Operation(Option<Decision>),
    /// What was decided for an external operation.
    External {
        /// Success or refusal.
        decision: Decision,
        /// The Funding balance afterwards, smallest units; of a success only.
        balance_after: Option<i128>,
        /// The idem_key belongs to another body; nothing was done.
        conflict: bool,
        /// The order number of the row: of its record in UBSCore's log.
        order_number: u64,
    },
    /// What was decided for an act on a hold.
    Hold(Decision),
    /// A hold is settled, with these external operations, which UBSCore's log records before the
    /// caller has its answer.
    Settled(Vec<ExternalOperation>),
    /// The outcome of an act on a recharge.
    Recharge(Box<RechargeReply>),
}

/// Why a batch was not committed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store could not be reached. Nothing happened.
    #[error("the store cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing happened, and the same batch may succeed later.
    #[error("the store asks for another try")]
    Retry(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing happened: some calls of the batch are blocked. The others may succeed at once.
    #[error("the store blocks {} calls of the batch", indices.len())]
    Blocked {
        /// Which calls, ascending, at least one.
        indices: Vec<usize>,
        /// Whether others have changed rows of these calls, and not only hold them.
        changed: bool,
        /// The answer of the store.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing happened, because of this one call of the batch.
    #[error("the store refused call {index} of the batch")]
    Refused {
        /// Which call.
        index: usize,
        /// Whether it broke the protocol: a repeat with another body, an operation that cannot be.
        violation: bool,
        /// What the store said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing happened, because of some calls of the batch that the store cannot name. Smaller batches
    /// show which.
    #[error("the store refused a batch of several calls")]
    Split(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing happened: a new name or order number is in use, though no row of it was found. No money
    /// may move until an operator has found out why.
    #[error("a new name or order number is in use")]
    Contradicted(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nothing happened, and nothing will: this process has been superseded.
    #[error("this process has been superseded")]
    Fenced,
    /// It may have happened, or may still. The same calls again are told.
    #[error("whether the store committed is unknown")]
    Unknown(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Which transfers to look for, a page of order numbers at a time.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// Order numbers above this one.
    pub after: u64,
    /// These order numbers as well, if they are not above it.
    pub listed: Arc<[u64]>,
    /// Users whose number leaves this remainder ...
    pub shard: u32,
    /// ... when divided by this.
    pub shards: u32,
    /// Only those that have not moved for so long or whose next try lies further ahead than the longest back-off;
    /// `None`: all, whatever any clock says.
    pub stale: Option<Stale>,
}

/// See [`Unfinished::stale`].
#[derive(Clone, Copy, Debug)]
pub struct Stale {
    /// Milliseconds without a move.
    pub moved_ms: u64,
    /// The longest back-off, milliseconds.
    pub retry_cap_ms: u64,
}

/// A page of the search.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What was found, oldest first.
    pub transfers: Vec<Transfer>,
    /// The order numbers of rows that were found and cannot be read.
    pub unreadable: Vec<u64>,
    /// Where the next page begins, `None` at the end.
    pub after: Option<u64>,
}

/// Where transfers and Funding balances are kept.
pub trait Store: Send + 'static {
    /// Commits a batch as one transaction, fenced. `standing`: taken before the call. Replies are in
    /// the order of the calls. Once a batch is committed, no batch given up before it can be.
    fn commit(
        &mut self,
        standing: Standing,
        calls: &[Call],
    ) -> impl Future<Output = Result<Vec<Reply>, Failure>> + Send;

    /// One page of the transfers that are not terminal.
    fn unfinished(
        &mut self,
        filter: Unfinished,
    ) -> impl Future<Output = Result<Page, Failure>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a seed of a fuzz target: "100:" differed from "100" in no field, and a client was told of "another ".
    #[test]
    fn fingerprints_that_differ_do_so_in_a_field() {
        let stored = fingerprint("FUNDING", "SPOT", "USDT", "100");
        for (other, fields) in [
            (fingerprint("FUNDING", "SPOT", "USDT", "100:"), &["amount"][..]),
            (fingerprint("FUNDING", "SPOT", "BTC", "1"), &["asset", "amount"]),
            (fingerprint("FUNDING:SPOT", "USDT", "100", ""), &["amount"]),
            (stored.clone(), &[]),
        ] {
            assert_eq!(differing_fields(&stored, &other), fields, "{other}");
        }
    }
}
