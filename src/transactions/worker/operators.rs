//! Requests of operators: ask again, resolve, and abandon a branch.

use domain::code::Code;
use domain::transfer::ReqId;

use super::Worker;
use super::requests::Client;
use crate::postgres::transactions::TransactionStore;
use crate::transaction::TransactionState;
use crate::transactions::abandon::{Abandoning, Judged};
use crate::transactions::branches::Branches;
use crate::transactions::entry::{Waiter, Want};
use crate::transactions::handle::{
    Abandon, TransactionAnswer, TransactionRefusal, TransactionReply,
};

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    /// Forgets every back-off of a transaction.
    pub(super) fn retry(&mut self, id: ReqId) -> TransactionAnswer {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Err(Code::TransactionNotFound.into());
        };
        entry.tries.clear();
        entry.records.due_ns = 0;
        self.woken.insert(id);
        Ok(TransactionReply { row: entry.row.clone(), replayed: false, settled: false })
    }

    /// Has the last participant asked to cancel, once, and then for its commit again. The answer to
    /// the commit decides, so nothing of this is recorded before.
    pub(super) fn resolve(&mut self, id: ReqId, client: Client) {
        let Some(entry) = self.entries.get_mut(&id) else {
            client.answer(Err(Code::TransactionNotFound.into()));
            return;
        };
        if entry.row.state != TransactionState::Deciding {
            let detail = format!("The transaction is {}.", entry.row.state.name());
            client.answer(Err(TransactionRefusal::because(Code::NotResolvable, detail)));
            return;
        }
        entry.resolving = true;
        entry.tries.clear();
        let Client { until_ns, late_ns, reply } = client;
        let want = Want::Rest;
        entry.waiters.push(Waiter { want, until_ns, late_ns, replayed: false, reply });
        self.woken.insert(id);
        self.wake_at(until_ns, id);
        self.wake_at(late_ns, id);
    }

    /// Has a branch ended by the word of operators, with the next commit of its transaction.
    pub(super) fn abandon(&mut self, id: ReqId, abandon: Abandon, client: Client) {
        let halted = self.parts.gate.is_closed();
        let Some(entry) = self.entries.get_mut(&id) else {
            client.answer(Err(Code::TransactionNotFound.into()));
            return;
        };
        match abandon.judge(&entry.row) {
            Ok(Judged::Move(_)) if halted => client.answer(Err(Code::ServiceHalted.into())),
            Ok(Judged::Move(_)) if entry.abandoning.is_some() => {
                let detail = "Another branch of the transaction is being ended. Try again.";
                client.answer(Err(TransactionRefusal::because(Code::Overloaded, detail)));
            }
            Ok(_) => {
                let Client { until_ns, reply, .. } = client;
                entry.abandoning = Some(Abandoning { abandon, until_ns, reply });
                self.woken.insert(id);
                self.wake_at(until_ns, id);
            }
            Err(refusal) => client.answer(Err(refusal)),
        }
    }
}
