//! The two participants of a transfer, behind one trait: [`funding::Funding`] (PostgreSQL) and
//! [`spot::Spot`] (the ring into UBSCore). They know operations and outcomes, and no state of a
//! transfer.

pub mod funding;
pub mod spot;

use std::future::Future;

use wal::Sequence;

use domain::code::Code;
use domain::form::{Form, check_form};
use domain::transfer::{Decision, ExternalOperation, Intent, Op, ReqId};

/// One operation of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// The whole transfer: participants record it, so that either store can be repaired from the
    /// other.
    pub intent: Intent,
}

/// The result of asking a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Decided, durable, done.
    Success,
    /// Decided, durable, and never to be done.
    ExplicitFail(Code),
    /// No answer in time: it may be done, or may still be.
    Timeout,
    /// Nothing was decided yet; asking again at once may help.
    Pending,
    /// The participant could not be reached.
    NetworkError,
    /// Any other result, with its reason.
    Unknown(Reason),
}

/// The reason of an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A repeat with another body, or a refund without a withdraw: refused, never applied, never
    /// recorded.
    Violation,
    /// The participant's queue is full.
    Overloaded,
    /// Nothing is recorded yet.
    NotRecorded,
    /// It may have been decided so long ago that the decision was forgotten.
    Forgotten,
    /// The answer of a commit was lost.
    CommitLost,
    /// The store refused the statement.
    Refused,
    /// Another process has taken over.
    Fenced,
    /// The form of the operation is wrong.
    Malformed,
    /// The answer was to another question.
    Mismatched,
}

impl Outcome {
    /// The decision, if there is one. Any other outcome moves no state.
    pub fn decision(self) -> Option<Decision> {
        match self {
            Outcome::Success => Some(Decision::Success),
            Outcome::ExplicitFail(code) => Some(Decision::Refused(code)),
            Outcome::Timeout | Outcome::Pending | Outcome::NetworkError | Outcome::Unknown(_) => {
                None
            }
        }
    }

    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Success => "success",
            Outcome::ExplicitFail(_) => "explicit_fail",
            Outcome::Timeout => "timeout",
            Outcome::Pending => "pending",
            Outcome::NetworkError => "network_error",
            Outcome::Unknown(Reason::Violation) => "violation",
            Outcome::Unknown(Reason::Overloaded) => "overloaded",
            Outcome::Unknown(Reason::NotRecorded) => "not_recorded",
            Outcome::Unknown(Reason::Forgotten) => "forgotten",
            Outcome::Unknown(Reason::CommitLost) => "commit_lost",
            Outcome::Unknown(Reason::Refused) => "refused_by_store",
            Outcome::Unknown(Reason::Fenced) => "fenced",
            Outcome::Unknown(Reason::Malformed) => "malformed",
            Outcome::Unknown(Reason::Mismatched) => "mismatched",
        }
    }
}

impl From<Decision> for Outcome {
    fn from(decision: Decision) -> Outcome {
        match decision {
            Decision::Success => Outcome::Success,
            Decision::Refused(code) => Outcome::ExplicitFail(code),
        }
    }
}

/// An outcome, and its record in the log of UBSCore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The outcome.
    pub outcome: Outcome,
    /// The record.
    pub log_sequence: Option<Sequence>,
}

impl Answer {
    /// An outcome without a record in the log.
    pub fn without_record(outcome: Outcome) -> Answer {
        Answer { outcome, log_sequence: None }
    }
}

/// How a participant is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// In the coordinator's store: the operation and the state change share one transaction.
    Together,
    /// By [`Adapter::ask`], after the intent to ask is durable.
    Apart,
}

/// A participant.
pub trait Adapter: Send + Sync + 'static {
    /// How it is asked.
    const ROUTE: Route;

    /// The checks that this participant makes itself before its store is asked.
    ///
    /// # Errors
    /// The code of the failed check.
    fn check(&self, ask: &Ask) -> Result<(), Code>;

    /// The result that an operation would have now; nothing is decided or recorded.
    /// [`Code::Overloaded`]: no place, or no answer.
    fn foresee(&self, ask: &Ask) -> impl Future<Output = Result<(), Code>> + Send {
        let _ = ask;
        std::future::ready(Ok(()))
    }

    /// Asks for operations of different transfers. Answers are in the order of the asks; each is
    /// durable.
    fn ask(&self, asks: Vec<Ask>) -> impl Future<Output = Vec<Answer>> + Send;

    /// Records a refusal of a WITHDRAW or a DEPOSIT, with [`Code::ResolvedByOperator`], if nothing
    /// is recorded yet: no late call can succeed afterwards. Answers the recorded decisions, in the
    /// order of the asks; each is durable.
    fn refuse(&self, asks: Vec<Ask>) -> impl Future<Output = Vec<Answer>> + Send;

    /// Records external operations that PostgreSQL has decided. Answers are in the order of the
    /// operations; each is durable. A participant without such records answers `Unknown` to each.
    fn record(
        &self,
        operations: Vec<ExternalOperation>,
    ) -> impl Future<Output = Vec<Answer>> + Send {
        let none = Answer::without_record(Outcome::Unknown(Reason::Malformed));
        std::future::ready(vec![none; operations.len()])
    }

    /// The recorded decision of an operation, `Unknown` if there is none: "not found" is not "never
    /// will be".
    fn query(&self, req_id: ReqId, op: Op) -> impl Future<Output = Answer> + Send;
}

/// The form check of both adapters, each with its own assets.
fn check_ask(ask: &Ask, asset_known: bool) -> Result<(), Code> {
    let intent = &ask.intent;
    let (req_id, user) = (intent.req_id.number(), intent.user.number());
    if ask.op.is_external() {
        return Err(Code::InvalidRequest);
    }
    check_form(Form { req_id, user, amount: intent.amount.units(), asset_known }).map(|_| ())
}
