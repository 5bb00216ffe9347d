//! The worker of transactions in `ubscore serve`. It stands behind the coordinator, and ends before
//! it: it holds a reference until the last handle is gone.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;

use crate::adapters::Adapter;
use crate::adapters::spot::Spot;
use crate::clock::Clock;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::entropy::SystemEntropy;
use crate::events::{Hub, webhooks};
use crate::gate::Gate;
use crate::participant::Participants;
use crate::postgres::admin::Admin;
use crate::postgres::flight::EventIds;
use crate::postgres::reads::Reads;
use crate::postgres::transactions::database::{TransactionDatabase, TransactionTold};
use crate::stores::writer::Postgres;
use crate::task::Tasks;
use crate::transactions::parties::Parties;
use crate::transactions::{Options, TransactionParts, Transactions, start};

/// Starts the worker, and returns its handle. The watermark waits from now on until the unfinished
/// transactions are read.
///
/// # Errors
/// The configuration has a secret that cannot sign.
pub(super) fn begin<F: Adapter>(
    config: &Config,
    (postgres, incarnation): (&Postgres, u64),
    (coordinator, spot): (&Arc<Coordinator<Spot, F>>, &Arc<Spot>),
    (admin, reads): (&Admin, Reads),
    (clock, gate, silent): (&Arc<dyn Clock>, Arc<Gate>, Arc<AtomicBool>),
    (ids, hub): (Arc<EventIds>, Option<Arc<Hub>>),
    tasks: &mut Tasks,
) -> anyhow::Result<Transactions> {
    let services = Participants::new(config, Arc::clone(clock)).context("know the participants")?;
    let endpoint = config.webhooks.url.as_ref().map(|_| webhooks::ENDPOINT.to_owned());
    let told = TransactionTold { ids, endpoints: Vec::from_iter(endpoint) };
    let store =
        TransactionDatabase::new(postgres.address.clone(), postgres.limits, incarnation, told);
    let numbers = coordinator.transaction_numbers();
    let of_transfers = Arc::clone(coordinator);
    let parts = TransactionParts {
        branches: Arc::new(Parties::new(
            Arc::clone(coordinator),
            Arc::clone(spot),
            services,
            admin.clone(),
        )),
        clock: Arc::clone(clock),
        entropy: Box::new(SystemEntropy::default()),
        gate,
        numbers,
        shortage: Arc::new(move || of_transfers.shortage()),
        special: Arc::new(move |user, asset| reads.is_special(user, asset)),
        told: Arc::new(move |row| {
            if let Some(hub) = &hub {
                hub.transaction_over(row);
            }
        }),
        silent,
        options: Options::from(config),
    };
    let (transactions, inbox) = Transactions::new(config.coordinator.queue_max);
    start(parts, store, Box::new(SystemEntropy::default()), inbox, tasks);
    Ok(transactions)
}
