//! The two participants of a transfer, behind one trait: [`funding::Funding`] (PostgreSQL) and [`spot::Spot`]
//! (the ring into UBSCore). They know operations and outcomes, and nothing of a transfer's state.

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
    /// The transfer, whole: participants record it, so that either store can be repaired from the other.
    pub intent: Intent,
}

/// What came back from a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Decided, durable, done.
    Success,
    /// Decided, durable, and never to be done.
    ExplicitFail(Code),
    /// No answer in time: it may be done, or may still be.
    Timeout,
    /// Nothing was decided yet; asking again may help at once.
    Pending,
    /// The participant could not be reached.
    NetworkError,
    /// Anything else, with what is known of it.
    Unknown(Reason),
}

/// Why an outcome is unknown, where more can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A repeat with another body, or a refund of what was not withdrawn: refused, never applied, never recorded.
    Violation,
    /// The participant's queue is full.
    Overloaded,
    /// Nothing is recorded yet.
    NotRecorded,
    /// It may have been decided, so long ago that the decision has been forgotten.
    Forgotten,
    /// A commit's answer was lost.
    CommitLost,
    /// The store refused the statement.
    Refused,
    /// This process has been superseded.
    Fenced,
    /// The operation's form is wrong.
    Malformed,
    /// The answer was to another question.
    Mismatched,
}

impl Outcome {
    /// The decision, where there is one. Everything else moves no state.
    pub fn decision(self) -> Option<Decision> {
        match self {
            Outcome::Success => Some(Decision::Success),
            Outcome::ExplicitFail(code) => Some(Decision::Refused(code)),
            Outcome::Timeout | Outcome::Pending | Outcome::NetworkError | Outcome::Unknown(_) => {
                None
            }
        }
    }

    /// For logs.
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

/// An outcome, and where UBSCore's log holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What came back.
    pub outcome: Outcome,
    /// UBSCore's record of it.
    pub log_sequence: Option<Sequence>,
}

impl Answer {
    /// An outcome that no log holds.
    pub fn without_record(outcome: Outcome) -> Answer {
        Answer { outcome, log_sequence: None }
    }
}

/// How a participant is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It lives in the coordinator's store: the operation and the state change share one transaction.
    Together,
    /// It is asked by [`Adapter::ask`], after the intent to ask it is durable.
    Apart,
}

/// A participant.
pub trait Adapter: Send + Sync + 'static {
    /// How it is asked.
    const ROUTE: Route;

    /// The checks this participant makes for itself, before anything is asked of its store.
    ///
    /// # Errors
    /// The code of the check that fails.
    fn check(&self, ask: &Ask) -> Result<(), Code>;

    /// What an operation would come to now; nothing is decided or recorded. [`Code::Overloaded`]: no place, or no answer.
    fn foresee(&self, ask: &Ask) -> impl Future<Output = Result<(), Code>> + Send {
        let _ = ask;
        std::future::ready(Ok(()))
    }

    /// Asks for operations of different transfers. Answers are in the order of the asks; each is durable.
    fn ask(&self, asks: Vec<Ask>) -> impl Future<Output = Vec<Answer>> + Send;

    /// Has refusals of a WITHDRAW or a DEPOSIT recorded, with [`Code::ResolvedByOperator`], where nothing is recorded yet: from
    /// then on no late call can succeed. Answers what is recorded, in the order of the asks; each is durable.
    fn refuse(&self, asks: Vec<Ask>) -> impl Future<Output = Vec<Answer>> + Send;

    /// Records external operations that PostgreSQL has decided. Answers are in the order of the operations; each is durable.
    /// A participant that keeps no such records answers `Unknown` to each.
    fn record(
        &self,
        operations: Vec<ExternalOperation>,
    ) -> impl Future<Output = Vec<Answer>> + Send {
        let none = Answer::without_record(Outcome::Unknown(Reason::Malformed));
        std::future::ready(vec![none; operations.len()])
    }

    /// What is recorded for an operation, `Unknown` where nothing is: "not found" is not "never will be".
    fn query(&self, req_id: ReqId, op: Op) -> impl Future<Output = Answer> + Send;
}

/// The form check both adapters make, each against the assets it knows.
fn check_ask(ask: &Ask, asset_known: bool) -> Result<(), Code> {
    let intent = &ask.intent;
    let (req_id, user) = (intent.req_id.number(), intent.user.number());
    if matches!(ask.op, Op::ExtDeposit | Op::ExtWithdraw) {
        return Err(Code::InvalidRequest);
    }
    check_form(Form { req_id, user, amount: intent.amount.units(), asset_known }).map(|_| ())
}
