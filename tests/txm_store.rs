//! The store of the transaction manager on a real PostgreSQL: requests, nonces, steps, reads.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::decide::{EndpointAnswer, TxStep};
use chain::fee::GasPrice;
use chain::payload::{TxPayload, address_text};
use chain::state::{AttemptKind, TxState};
use chain::tx::{Attempt, NewTx, Tx};
use txm::options::SignerPolicy;
use txm::store::{Acquired, Created, Lease, TxStore};
use ubscore::postgres::txm::details::{Deed, SignerKind};
use ubscore::postgres::txm::reads::TxmReads;
use ubscore::postgres::txm::schema;
use ubscore::postgres::txm::store::{NodeStart, TxmStore};

use crate::harness::{LIMITS, Site, block_on};

/// Suspensions, commands, the feed, lists.
mod asked;
/// The news of other nodes.
mod news;
/// Requests and their nonces.
mod numbered;
/// The plans of the statements.
mod plans;
/// The steps of rows, and the laws that PostgreSQL holds.
mod written;

/// The operator of these tests.
pub(crate) const DEED: Deed<'static> = Deed { actor: "op-1", reason: "a test" };

/// A database with the schema and some signers, and a clock that stands until it is moved.
pub(crate) struct Rows {
    pub(crate) site: Site,
}

/// The signer with a number.
pub(crate) fn signer(number: u8) -> Address {
    Address::repeat_byte(number)
}

impl Rows {
    /// With one signer.
    pub(crate) fn new() -> Rows {
        Rows::with_signers(1)
    }

    /// With signers 1, 2, ...
    pub(crate) fn with_signers(count: u8) -> Rows {
        let rows = Rows::by_the_clock();
        rows.site.sql(
            "CREATE TABLE test_clock AS SELECT clock_timestamp() AS at; \
             CREATE OR REPLACE FUNCTION txm.clock() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE \
               AS 'SELECT at FROM public.test_clock'",
        );
        let reads = TxmReads::new(rows.node("setup").pool().clone());
        for number in 1..=count {
            let added = reads.add_signer(signer(number), SignerKind::Keystore, 0, &DEED);
            assert!(block_on(added).expect("added"));
        }
        rows
    }

    /// By PostgreSQL's own clock, and without a signer.
    pub(crate) fn by_the_clock() -> Rows {
        let site = Site::new();
        block_on(schema::migrate(&site.target(), &LIMITS)).expect("a schema");
        Rows { site }
    }

    /// Moves the clock.
    pub(crate) fn step(&self, interval: &str) {
        self.site.sql(&format!("UPDATE test_clock SET at = at + INTERVAL '{interval}'"));
    }

    /// A new process with this name.
    pub(crate) fn node(&self, name: &str) -> TxmStore {
        self.node_with(name, BTreeMap::new())
    }

    /// The same with policies, and with limits unless there are none.
    pub(crate) fn node_with(
        &self,
        name: &str,
        policies: BTreeMap<Address, SignerPolicy>,
    ) -> TxmStore {
        let is_limited = !policies.is_empty();
        let start = NodeStart { policies, is_limited, ..node_start(name) };
        block_on(TxmStore::start(&self.site.target(), &LIMITS, 4, &start)).expect("a start")
    }

    /// The rows of a statement's first column.
    pub(crate) fn column(&self, statement: &str) -> Vec<String> {
        self.site.sql(statement).into_iter().map(|row| row[0].clone()).collect()
    }
}

/// The start of a process that has the keys of every signer.
pub(crate) fn node_start(name: &str) -> NodeStart {
    NodeStart {
        node: name.to_owned(),
        url: format!("http://{name}"),
        signers: (1..=9).map(signer).collect(),
        policies: BTreeMap::new(),
        is_limited: false,
        queue_max: 100_000,
        chain_id: 31_337,
        genesis: B256::repeat_byte(0xab),
        lease_duration: Duration::from_secs(10),
        lease_skew: Duration::from_secs(1),
    }
}

/// Acquires signer 1, which must succeed.
pub(crate) fn owned(store: &TxmStore) -> Lease {
    match block_on(store.acquire(signer(1))).expect("an answer") {
        Acquired::Mine(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// A payment of signer 1, prepared.
pub(crate) fn request(id: &str) -> NewTx {
    let to = Address::repeat_byte(0x77);
    let value = U256::from(5);
    NewTx {
        signer: signer(1),
        request_id: id.to_owned(),
        business_key: None,
        payload: TxPayload { to, value, data: Bytes::new(), token: None, gas: None },
        gas: Some(21_000),
        deadline_ms: None,
    }
}

/// The row of a request that is new.
pub(crate) fn new_row(created: &Created) -> Tx {
    match created {
        Created::New(tx) => (**tx).clone(),
        other => panic!("{other:?}"),
    }
}

/// Creates one request, which must be new.
pub(crate) fn created(store: &TxmStore, lease: Lease, id: &str) -> Tx {
    let made = block_on(store.create(lease, 0, &[request(id)])).expect("an answer");
    new_row(&made[0])
}

/// The step to a row that `change` makes of the one that stands.
pub(crate) fn step(tx: &Tx, change: impl FnOnce(&mut Tx)) -> TxStep {
    let mut tx = tx.clone();
    change(&mut tx);
    tx.version += 1;
    TxStep {
        tx,
        is_new_attempt: false,
        submits: false,
        answers: None,
        confirmed: None,
        effects: Vec::new(),
    }
}

/// The step that stores the first attempt of a row.
pub(crate) fn first_attempt(tx: &Tx) -> TxStep {
    let number = u8::try_from(tx.nonce.expect("numbered") % 200).expect("small");
    let attempt = Attempt {
        number: 1,
        kind: AttemptKind::Pay,
        raw: Bytes::from(vec![2, number]),
        hash: B256::repeat_byte(number + 1),
        price: GasPrice { max_fee: 30, max_tip: 2 },
        gas: 21_000,
        class: None,
        was_in_pool: false,
    };
    let step = step(tx, |tx| {
        tx.state = TxState::Submitted;
        tx.attempts.push(attempt);
        tx.resubmit_in = Some(Duration::from_secs(60));
    });
    TxStep { is_new_attempt: true, submits: true, ..step }
}

/// Writes one step of signer 1.
pub(crate) fn written(store: &TxmStore, lease: Lease, step: TxStep) -> Option<Tx> {
    block_on(store.write(lease, &[step])).expect("an answer").remove(0)
}

/// The answer of an endpoint.
pub(crate) fn answer(endpoint: &str, class: chain::class::SendClass) -> EndpointAnswer {
    EndpointAnswer { endpoint: endpoint.to_owned(), class, text: "its words".to_owned() }
}

/// The name of signer 1 in SQL.
pub(crate) fn name() -> String {
    address_text(&signer(1))
}
