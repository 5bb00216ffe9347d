//! The parties of transactions in a run: Funding through the production coordinator, Spot through
//! the production core, and services that answer late, twice, with garbage, or never.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::code::Code;
use domain::hold::HoldOrder;
use domain::transfer::{Decision, Op};
use engine::ledger::Answer as CoreAnswer;
use engine::named::{NamedAnswer, NamedPosting, TxId};
use tokio::sync::oneshot;
use ubscore::transactions::branches::{Branches, Heard, ServiceWord, SpotWord};
use ubscore::transactions::step::Word;

use super::process::Process;
use super::spot::SpotModel;
use super::world::{Coordinating, World};

/// A service's time limit for an answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(50);

/// The record of a branch at its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceRecord {
    Tried,
    Refused,
    Confirmed,
    Cancelled,
}

/// All services: the records of their branches. They outlive every process.
#[derive(Debug, Default)]
pub(super) struct Services(BTreeMap<String, ServiceRecord>);

impl Services {
    /// The record and the answer to a word; an error if no correct caller says it.
    fn answer(&mut self, word: &ServiceWord) -> Result<Heard, String> {
        use ServiceRecord::{Cancelled, Confirmed, Refused, Tried};
        let record = self.0.get(&word.branch_id).copied();
        let agrees = word.payload["agrees"].as_bool().expect("our own payload");
        let no = || Heard::Refused {
            code: Code::ParticipantRefused,
            leg: None,
            participant_code: Some("NO".to_owned()),
        };
        let (next, heard) = match (word.word, record) {
            (Word::Try, None) if agrees => (Tried, Heard::done()),
            (Word::Try, None) => (Refused, no()),
            // A try behind its cancel is refused for ever.
            (Word::Try, Some(record @ (Refused | Cancelled))) => (record, no()),
            (Word::Try, Some(record)) => (record, Heard::done()),
            (Word::Confirm, Some(Tried | Confirmed)) => (Confirmed, Heard::done()),
            (Word::Cancel, Some(Tried | Cancelled) | None) => (Cancelled, Heard::done()),
            (Word::Cancel, Some(Refused)) => (Refused, Heard::done()),
            (Word::Commit, None) if agrees => (Confirmed, Heard::done()),
            (Word::Commit, None | Some(Refused)) => (Refused, no()),
            (Word::Commit, Some(Confirmed)) => (Confirmed, Heard::done()),
            (_, record) => return Err(format!("{word:?} behind {record:?}")),
        };
        self.0.insert(word.branch_id.clone(), next);
        Ok(heard)
    }
}

/// The fate of a question to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    AnswerLost,
    /// The service carries it out after its caller has stopped waiting.
    Late,
    Doubled,
    /// It is carried out, and its answer cannot be read.
    Garbage,
}

/// See the module.
pub(super) struct WorldParties {
    pub(super) world: Arc<World>,
    pub(super) process: Arc<Process>,
    pub(super) coordinator: Arc<Coordinating>,
    pub(super) spot: Arc<SpotModel>,
}

fn unknown(why: &str) -> Heard {
    Heard::Unknown { why: why.to_owned() }
}

impl WorldParties {
    /// One copy of a question on its way to its service.
    async fn deliver(world: Arc<World>, word: ServiceWord, travel: Duration) -> Heard {
        world.time.sleep(travel).await;
        let answer = world.services.lock().answer(&word);
        world.trace(format_args!("{} {}: {answer:?}", word.branch_id, word.word.name()));
        match answer {
            Ok(heard) => {
                let record = world.services.lock().0[&word.branch_id];
                world.law.lock().served(&word.branch_id, record);
                heard
            }
            Err(what) => {
                world.law.lock().breach("a service is told one end", what);
                unknown("a violation")
            }
        }
    }
}

impl Branches for WorldParties {
    async fn hold(&self, order: HoldOrder) -> Heard {
        self.process.awake().await;
        self.world.law.lock().hold_asked(&order);
        let answer = self.coordinator.hold(order.clone()).await;
        self.process.awake().await;
        match answer {
            Ok(decision) => {
                self.world.law.lock().hold_answered(&order, decision);
                match decision {
                    Decision::Success => Heard::done(),
                    Decision::Refused(code) => Heard::refused(code),
                }
            }
            Err(rejection) => unknown(rejection.code.message()),
        }
    }

    async fn spot(&self, word: SpotWord) -> Heard {
        self.process.awake().await;
        self.world.law.lock().transaction_asked(word.transaction, word.word, word.round);
        let SpotWord { word, transaction, order_number, round, tx_id, legs } = word;
        let tx_id = TxId::new(tx_id.as_str()).expect("both have 64 bytes at most");
        let posting = NamedPosting { transaction, order_number, round, tx_id, user: 0, legs };
        let op = match word {
            Word::Try | Word::SetBack => Op::Reserve,
            Word::Confirm | Word::Commit => Op::Settle,
            Word::Cancel => Op::Release,
        };
        match self.spot.post(op, posting).await {
            Some(CoreAnswer::Named(NamedAnswer { decision, leg, record })) => match decision {
                Decision::Success => Heard::Done { log_sequence: Some(record) },
                Decision::Refused(Code::TransactionAborted | Code::TransactionDecided) => {
                    unknown("UBSCore knows a later word")
                }
                Decision::Refused(code) => {
                    Heard::Refused { code, leg: Some(leg), participant_code: None }
                }
            },
            Some(CoreAnswer::Violation(why)) => {
                self.world.law.lock().breach("no caller breaks the protocol", why.to_owned());
                unknown(why)
            }
            Some(other) => unknown(&format!("{other:?}")),
            None => unknown("no answer in time"),
        }
    }

    async fn service(&self, word: ServiceWord) -> Heard {
        use Fate::*;
        self.process.awake().await;
        self.world.law.lock().transaction_asked(word.transaction, word.word, word.round);
        let fate = match self.world.fault(self.world.plan.spot_fault_one_in) {
            false => Arrives,
            true => self.world.pick(&[Lost, AnswerLost, Late, Doubled, Garbage]),
        };
        let (answer_to, answer) = oneshot::channel();
        let late = ANSWER_LIMIT * if fate == Late { 2 } else { 0 };
        let travel = self.world.chance().micros(50, self.world.plan.travel_us_max) + late;
        let deliver = WorldParties::deliver(Arc::clone(&self.world), word.clone(), travel);
        self.world.spawn(async move {
            let heard = if fate == Lost { None } else { Some(deliver.await) };
            match heard {
                Some(_) if fate == Garbage => drop(answer_to.send(unknown("garbage"))),
                // A send error means that the caller has stopped waiting.
                Some(heard) if fate != AnswerLost => drop(answer_to.send(heard)),
                // The caller gets no sign that the answer is lost.
                Some(_) | None => std::future::pending().await,
            }
        });
        if fate == Doubled {
            let travel = self.world.chance().micros(5, 300_000);
            let twin = WorldParties::deliver(Arc::clone(&self.world), word, travel);
            self.world.spawn(async move {
                twin.await;
            });
        }
        match self.process.within(ANSWER_LIMIT, answer).await {
            Some(Ok(heard)) => heard,
            Some(Err(_)) | None => unknown("no answer in time"),
        }
    }
}
