//! The parties of a transaction, as its worker asks them. A model of all of them can stand behind
//! the trait.

use std::future::Future;

use domain::code::Code;
use domain::hold::HoldOrder;
use domain::posting::Posting;
use domain::transfer::{Cid, ReqId};

use super::step::Word;

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Done, and recorded by the party.
    Done {
        /// The record in the log of UBSCore.
        log_sequence: Option<u64>,
    },
    /// Refused, and recorded by the party. A try and a commit alone can be refused.
    Refused {
        /// Why. PARTICIPANT_REFUSED from a service.
        code: Code,
        /// The first failing leg; of Spot over all legs of the word, from 0.
        leg: Option<u8>,
        /// The code of the service.
        participant_code: Option<String>,
    },
    /// It may be done or not: ask again.
    Unknown {
        /// For operators.
        why: String,
    },
}

impl Heard {
    /// Done, without a record in the log.
    pub fn done() -> Heard {
        Heard::Done { log_sequence: None }
    }

    /// A refusal with this code.
    pub fn refused(code: Code) -> Heard {
        Heard::Refused { code, leg: None, participant_code: None }
    }
}

/// A word to Spot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpotWord {
    /// Try, confirm or cancel.
    pub word: Word,
    /// The transaction.
    pub transaction: ReqId,
    /// Its order number.
    pub order_number: u64,
    /// The round, from 1.
    pub round: u8,
    /// The name that its owner gave.
    pub tx_id: Cid,
    /// The legs of all accepted rounds up to this one; none to a cancel.
    pub legs: Posting,
}

/// A word to a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceWord {
    /// The service, by the name of the configuration.
    pub name: String,
    /// Try, confirm, cancel or commit.
    pub word: Word,
    /// The transaction.
    pub transaction: ReqId,
    /// The name that its owner gave.
    pub tx_id: Cid,
    /// The branch's own name: an action of it is done once for ever.
    pub branch_id: String,
    /// The round, from 1.
    pub round: u8,
    /// The words of the request for this service.
    pub payload: serde_json::Value,
}

/// The parties. Every word can be repeated, and has the same answer then.
pub trait Branches: Send + Sync + 'static {
    /// Acts on one hold of Funding.
    fn hold(&self, order: HoldOrder) -> impl Future<Output = Heard> + Send;

    /// Asks Spot.
    fn spot(&self, word: SpotWord) -> impl Future<Output = Heard> + Send;

    /// Asks a service.
    fn service(&self, word: ServiceWord) -> impl Future<Output = Heard> + Send;
}
