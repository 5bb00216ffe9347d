//! The parties of the service: Funding through the workers of transfers, Spot through the ring, and
//! services over HTTP.

use std::sync::Arc;

use domain::code::Code;
use domain::hold::HoldOrder;
use domain::transfer::{Decision, ReqId};
use engine::named::{NamedPosting, TxId};
use tokio::sync::OnceCell;

use super::branches::{Branches, Heard, ServiceWord, SpotWord};
use super::step::Word;
use crate::adapters::spot::Spot;
use crate::adapters::{Adapter, Answer, Outcome, Reason};
use crate::alert::{Alert, alert_about};
use crate::coordinator::Coordinator;
use crate::participant::{ParticipantAction, ParticipantCall, ParticipantOutcome, Participants};
use crate::postgres::admin::Admin;
use domain::transfer::Op;

/// See the module.
pub struct Parties<F> {
    coordinator: Arc<Coordinator<Spot, F>>,
    spot: Arc<Spot>,
    services: Participants,
    admin: Admin,
    /// PostgreSQL has the mark that the log holds postings.
    marked: OnceCell<()>,
}

impl<F> Parties<F> {
    /// The parties behind these. `admin`: marks PostgreSQL before the log has its first posting.
    pub fn new(
        coordinator: Arc<Coordinator<Spot, F>>,
        spot: Arc<Spot>,
        services: Participants,
        admin: Admin,
    ) -> Parties<F> {
        Parties { coordinator, spot, services, admin, marked: OnceCell::new() }
    }

    /// The failing leg of a refused RESERVE. Without an answer the refusal counts all the same.
    async fn failing_leg(&self, transaction: ReqId, round: u8) -> Option<u8> {
        self.spot.failing_leg(transaction, Op::Reserve, round).await.ok().flatten()
    }
}

impl<F: Adapter> Branches for Parties<F> {
    async fn hold(&self, order: HoldOrder) -> Heard {
        match self.coordinator.hold(order).await {
            Ok(Decision::Success) => Heard::done(),
            Ok(Decision::Refused(code)) => Heard::refused(code),
            Err(rejection) => {
                let why = rejection.detail.unwrap_or_else(|| rejection.code.message().to_owned());
                Heard::Unknown { why }
            }
        }
    }

    async fn spot(&self, word: SpotWord) -> Heard {
        let SpotWord { word, transaction, order_number, round, tx_id, legs } = word;
        // Without the mark a new log could be begun from PostgreSQL alone, which lacks postings.
        if let Err(error) = self.marked.get_or_try_init(|| self.admin.mark_posted()).await {
            return Heard::Unknown { why: format!("PostgreSQL is not marked: {error}") };
        }
        let tx_id = TxId::new(tx_id.as_str()).expect("both have 64 bytes at most");
        // A service's own transaction has no user.
        let posting = NamedPosting { transaction, order_number, round, tx_id, user: 0, legs };
        let Answer { outcome, log_sequence } = match word {
            Word::Try | Word::SetBack => self.spot.reserve(posting).await,
            Word::Confirm | Word::Commit => self.spot.settle(posting).await,
            Word::Cancel => self.spot.release(posting).await,
        };
        if let Outcome::Unknown(Reason::Violation | Reason::Forgotten) = outcome {
            let what = format_args!("UBSCore: {} of transaction {transaction}", word.name());
            alert_about(Alert::ProtocolViolation, &transaction, what);
        }
        match outcome.decision() {
            Some(Decision::Success) => Heard::Done { log_sequence },
            // Recorded behind a later word: this answer belongs to no round.
            Some(Decision::Refused(
                code @ (Code::TransactionAborted | Code::TransactionDecided),
            )) => Heard::Unknown { why: format!("UBSCore knows a later word: {code}") },
            Some(Decision::Refused(code)) => {
                let leg = self.failing_leg(transaction, round).await;
                Heard::Refused { code, leg, participant_code: None }
            }
            None => Heard::Unknown { why: outcome.name().to_owned() },
        }
    }

    async fn service(&self, word: ServiceWord) -> Heard {
        let action = match word.word {
            Word::Try | Word::SetBack => ParticipantAction::Try,
            Word::Confirm => ParticipantAction::Confirm,
            Word::Cancel => ParticipantAction::Cancel,
            Word::Commit => ParticipantAction::Commit,
        };
        let call = ParticipantCall {
            tx_id: word.tx_id.as_str().to_owned(),
            transaction_id: word.transaction,
            branch_id: word.branch_id,
            action,
            round: word.round.into(),
            payload: word.payload,
        };
        match self.services.call(&word.name, &call).await {
            ParticipantOutcome::Done => Heard::done(),
            ParticipantOutcome::Refused { code } => Heard::Refused {
                code: Code::ParticipantRefused,
                leg: None,
                participant_code: Some(code),
            },
            ParticipantOutcome::Unknown { why } => Heard::Unknown { why: why.to_string() },
        }
    }
}
