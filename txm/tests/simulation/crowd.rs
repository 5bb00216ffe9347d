//! Clients: each has one request, and repeats it at any node until it has an answer for good.

use std::collections::BTreeMap;
use std::sync::Arc;

use chain::tx::{NewTx, TxId};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep, timeout};
use txm::model::Draw;
use txm::refusal::TxRefusal;
use txm::store::Created;

use super::process::NodeDesk;
use super::tally::Tally;

/// A client's wish.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub at: Duration,
    pub request: NewTx,
    pub later: bool,
    pub repeats: u32,
}

/// The desks that answer now, and the answers that were given.
#[derive(Clone, Default)]
pub(super) struct Crowd {
    pub desks: Arc<Mutex<Vec<NodeDesk>>>,
    /// By signer's request: its row, and the number of the database that has it.
    pub answers: Arc<Mutex<BTreeMap<String, (u64, TxId)>>>,
    /// The number of the database: a restored one is another one.
    pub epoch: Arc<Mutex<u64>>,
}

impl Crowd {
    pub(super) fn spawn(
        &self,
        wanted: Wanted,
        mut draw: Draw,
        tally: Arc<Tally>,
    ) -> JoinHandle<()> {
        let crowd = self.clone();
        tokio::spawn(async move {
            sleep(wanted.at).await;
            for _ in 0..=wanted.repeats {
                if !crowd.post(&wanted, &mut draw, &tally).await {
                    return;
                }
                sleep(Duration::from_millis(draw.below(8_000))).await;
            }
        })
    }

    /// Asks until there is an answer for good. Returns whether there is a row.
    async fn post(&self, wanted: &Wanted, draw: &mut Draw, tally: &Tally) -> bool {
        loop {
            let desk = {
                let desks = self.desks.lock();
                let at = usize::try_from(draw.below(desks.len().max(1) as u64)).expect("a few");
                desks.get(at).cloned()
            };
            let patience = Duration::from_millis(500 + draw.below(4_000));
            let epoch = *self.epoch.lock();
            if let Some(desk) = desk {
                match timeout(patience, desk.create(wanted.request.clone(), wanted.later)).await {
                    Ok(Ok(Created::New(tx) | Created::Known(tx))) => {
                        tally.note("answered with a row");
                        self.answered(&wanted.request, epoch, tx.id);
                        return true;
                    }
                    Ok(Err(refusal)) => {
                        tally.note(refusal.name());
                        if let TxRefusal::Duplicate(_) | TxRefusal::WouldRevert(_) = refusal {
                            return false;
                        }
                        assert!(!refusal.is_for_good(), "refused for good: {refusal}");
                    }
                    Ok(Ok(Created::Conflict(fields))) => panic!("a conflict: {fields:?}"),
                    Err(_) => tally.note("no answer in time"),
                }
            }
            sleep(Duration::from_millis(300 + draw.below(1_000))).await;
        }
    }

    fn answered(&self, request: &NewTx, epoch: u64, id: TxId) {
        if epoch != *self.epoch.lock() {
            return;
        }
        let key = format!("{}/{}", request.signer, request.request_id);
        let mut answers = self.answers.lock();
        let kept = *answers
            .entry(key)
            .and_modify(|it| {
                // The row of the database before is not there any more.
                if it.0 != epoch {
                    *it = (epoch, id);
                }
            })
            .or_insert((epoch, id));
        assert_eq!(kept.1, id, "CL7: the request {} has two rows", request.request_id);
    }
}
