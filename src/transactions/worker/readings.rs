//! Searches by name: all that wait share one read.

use std::collections::HashSet;

use super::requests::Sought;
use super::{Done, Running, Work, Worker};
use crate::alert::{Alert, alert_about};
use crate::postgres::Superseded;
use crate::postgres::transactions::{Found, TransactionError, TransactionStore, UnreadableRow};
use crate::transaction::TransactionName;
use crate::transactions::branches::Branches;
use domain::transfer::ReqId;

/// Rows of one read.
const READ_MAX: usize = 64;

/// One search of a read.
pub(super) enum Reading {
    /// For a caller.
    Sought(Box<Sought>),
    /// A row that may have changed.
    Known(ReqId, TransactionName),
}

impl Reading {
    fn name(&self) -> &TransactionName {
        match self {
            Reading::Sought(sought) => sought.name(),
            Reading::Known(_, name) => name,
        }
    }
}

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    /// Begins one read of all that is searched. A search waits for the rounds of its name that came
    /// before it and have not been sent.
    pub(super) fn begin_read(&mut self) -> Option<Running<S>> {
        let is_search = |work: &Work| matches!(work, Work::Find(_) | Work::Reread(_));
        if !self.work.iter().any(is_search) {
            return None;
        }
        let mut earlier = HashSet::new();
        let (mut readings, mut kept) = (Vec::new(), Vec::with_capacity(self.work.len()));
        for work in std::mem::take(&mut self.work) {
            match work {
                Work::Find(sought)
                    if readings.len() < READ_MAX && !earlier.contains(sought.name()) =>
                {
                    readings.push(Reading::Sought(sought));
                }
                Work::Reread(id) if readings.len() < READ_MAX => {
                    // It may have ended meanwhile.
                    if let Some(entry) = self.entries.get(&id) {
                        readings.push(Reading::Known(id, entry.row.name.clone()));
                    }
                }
                work => {
                    if let Work::Accept(pending) = &work
                        && !pending.is_sent()
                    {
                        earlier.insert(pending.name().clone());
                    }
                    kept.push(work);
                }
            }
        }
        self.work.extend(kept);
        if readings.is_empty() {
            return None;
        }
        let mut store = self.store.take().expect("no call is under way");
        Some(Box::pin(async move {
            let names: Vec<&TransactionName> = readings.iter().map(Reading::name).collect();
            let found = store.find_all(&names).await;
            (store, Done::Read(readings, found))
        }))
    }

    /// # Errors
    /// [`Superseded`].
    pub(super) fn on_read(
        &mut self,
        readings: Vec<Reading>,
        result: Result<Vec<Found>, TransactionError>,
    ) -> Result<(), Superseded> {
        let Ok(found) = self.result(result)? else {
            self.work.extend(readings.into_iter().map(|reading| match reading {
                Reading::Sought(sought) => Work::Find(sought),
                Reading::Known(id, _) => Work::Reread(id),
            }));
            return Ok(());
        };
        assert_eq!(found.len(), readings.len(), "one result a name");
        for (reading, found) in readings.into_iter().zip(found) {
            match (reading, found) {
                (Reading::Sought(sought), found) => self.on_found(*sought, found),
                (Reading::Known(_, _), Ok(Some(row))) => self.adopt(row),
                (Reading::Known(id, _), Ok(None)) => self.on_lost(id),
                (Reading::Known(id, _), Err(error)) => self.on_unreadable(id, &error),
            }
        }
        Ok(())
    }

    /// A row at the start that cannot be read: it stops no other one.
    pub(super) fn pass_over(&mut self, row: UnreadableRow) {
        let UnreadableRow { id, order_number, owner, tx_id, what } = row;
        self.numbers_in_use.insert(order_number);
        self.publish();
        let known = id.is_some_and(|id| self.entries.contains_key(&id));
        if let (Some(id), false) = (id, known) {
            self.unreadable.insert(id);
        }
        let about = id.map_or_else(|| order_number.to_string(), |id| id.to_string());
        let what = format_args!(
            "transaction {tx_id} of {owner} (order number {order_number}) cannot be read, and \
             stays as it is: {what}"
        );
        alert_about(Alert::TransactionStuck, &about, what);
    }

    /// The row of a known transaction cannot be read any more.
    fn on_unreadable(&mut self, id: ReqId, error: &TransactionError) {
        let what = format_args!("transaction {id} stays as it is: {error}");
        alert_about(Alert::TransactionStuck, &id, what);
        self.leave_alone(id);
    }
}
