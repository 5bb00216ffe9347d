//! The rows of transactions in PostgreSQL: the store of their worker, the decision of a caller in
//! SQL, grants, reads, the watermark and the audit of holds.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use ubscore::postgres::flight::EventIds;
use ubscore::postgres::transactions::database::{TransactionDatabase, TransactionTold};
use ubscore::postgres::transactions::{
    Accepted, BranchMove, MoveResult, RoundAccept, TransactionError, TransactionMove,
    TransactionNote, TransactionStore,
};
use ubscore::transaction::{
    BranchState, Decider, LegPlace, Party, TransactionLeg, TransactionName, TransactionRound,
    TransactionRow, TransactionState,
};

use domain::account::UserId;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::{Cid, Participant, ReqId};

use crate::harness::{LIMITS, Session, Site, block_on, eventually};
use crate::schema::committed::fresh;

/// The audit of transactions and holds.
mod audited;
/// The decision of a caller in a local transaction.
mod decided;
/// The roles that may decide, and what operators read.
mod granted;
/// The watermark.
mod kept;
/// The store of the worker: accepts, refusals and moves.
mod recorded;
/// The event of a transaction that is DONE.
mod told;

const OWNER: &str = "shop";
const FUNDING: Party = Party::Store(Participant::Funding);

/// A database with a schema, and the store of its process.
struct Desk {
    site: Site,
    store: TransactionDatabase,
    incarnation: u64,
    next: u64,
}

impl Desk {
    fn new() -> Desk {
        Desk::at(fresh())
    }

    fn at(site: Site) -> Desk {
        let incarnation = site.begin(&LIMITS, 1).number;
        let store = store_of(&site, incarnation);
        Desk { site, store, incarnation, next: 0 }
    }

    /// A round with its numbers.
    fn asked(&mut self, round: &TransactionRound) -> RoundAccept {
        self.next += 1;
        let (order_number, at) = ((self.incarnation << 40) + self.next, now());
        let id = ReqId::new(u128::from(order_number) << 20).expect("not zero");
        RoundAccept { round: round.clone(), id, order_number, at }
    }

    fn accept(&mut self, round: &TransactionRound) -> Accepted {
        let accept = self.asked(round);
        block_on(self.store.accept(&accept)).expect("an answer")
    }

    fn taken(&mut self, round: &TransactionRound) -> TransactionRow {
        match self.accept(round) {
            Accepted::Taken { row, .. } => *row,
            other => panic!("{other:?}"),
        }
    }

    fn refused(&mut self, round: &TransactionRound) -> (Code, String) {
        match self.accept(round) {
            Accepted::Refused { code, detail, .. } => (code, detail),
            Accepted::Taken { .. } => panic!("it was taken"),
        }
    }

    fn record(&mut self, moves: &[TransactionMove]) -> Vec<MoveResult> {
        block_on(self.store.record(moves, now())).expect("an answer")
    }

    fn moved(&mut self, one: TransactionMove) {
        // A statement that was refused holds its rows for a moment longer.
        eventually("a row that is free", || {
            match self.record(std::slice::from_ref(&one)).remove(0) {
                MoveResult::Held(_) => None,
                other => {
                    assert_eq!(other, MoveResult::Moved);
                    Some(())
                }
            }
        });
    }

    fn find(&mut self, tx_id: &str) -> TransactionRow {
        let found = block_on(self.store.find(&named(tx_id))).expect("an answer");
        found.expect("a row")
    }

    /// A transaction of the caller with all of its first round tried.
    fn tried(&mut self, tx_id: &str) -> TransactionRow {
        let row = self.taken(&round(tx_id, 1, Decider::Caller));
        self.moved(branch_move(&row, 1, BranchState::Trying, BranchState::Tried));
        self.find(tx_id)
    }

    /// Makes a role of this name that may commit the owner's transactions. The server has it for
    /// all databases.
    fn role(&self, name: &str) -> String {
        let role = self.roleless(name);
        self.site.sql(&format!(
            "INSERT INTO transaction_grants (role_name, owner) VALUES ('{role}', '{OWNER}'); \
             GRANT EXECUTE ON FUNCTION transaction_commit TO {role}"
        ));
        role
    }

    /// A role without a grant.
    fn roleless(&self, name: &str) -> String {
        let database = self.site.sql_value("SELECT current_database()");
        let role = format!("{name}_{database}");
        self.site.sql(&format!("CREATE ROLE {role}"));
        role
    }

    /// A session of a role.
    fn session(&self, role: &str) -> Session {
        let session = self.site.session();
        session.sql(&format!("SET SESSION AUTHORIZATION {role}"));
        session
    }
}

fn now() -> Timestamp {
    Timestamp::now()
}

fn named(tx_id: &str) -> TransactionName {
    TransactionName { owner: OWNER.to_owned(), tx_id: Cid::new(tx_id).expect("a name") }
}

fn leg(from: u64, to: u64, amount: u64) -> TransactionLeg {
    leg_in(Participant::Funding, from, to, amount)
}

fn leg_in(store: Participant, from: u64, to: u64, amount: u64) -> TransactionLeg {
    let user = |number| UserId::new(number).expect("a user");
    let place = |number| LegPlace::Available { store, user: user(number) };
    TransactionLeg { from: place(from), to: place(to), asset: AssetId(3), amount }
}

/// A round with one leg of Funding.
fn round(tx_id: &str, number: u8, decider: Decider) -> TransactionRound {
    TransactionRound {
        name: named(tx_id),
        round: number,
        decider,
        ttl_ms: 60_000,
        legs: vec![leg(1001, 1002, 250 * u64::from(number))],
        services: Vec::new(),
        last: None,
        followers: Vec::new(),
        fingerprint: [number; 16],
    }
}

/// The store of a process.
fn store_of(site: &Site, incarnation: u64) -> TransactionDatabase {
    let ids = Arc::new(EventIds::new(incarnation));
    let told = TransactionTold { ids, endpoints: vec!["default".to_owned()] };
    TransactionDatabase::new(site.target(), LIMITS, incarnation, told)
}

/// A passage of the transaction alone.
fn state_move(row: &TransactionRow, to: TransactionState) -> TransactionMove {
    TransactionMove {
        id: row.id,
        rounds: row.rounds,
        from: row.state,
        to,
        by: "coordinator".to_owned(),
        code: None,
        detail: None,
        seal: false,
        stores_ended: false,
        note: None,
        branches: Vec::new(),
    }
}

/// A passage of one branch of Funding.
fn branch_move(
    row: &TransactionRow,
    round: u8,
    from: BranchState,
    to: BranchState,
) -> TransactionMove {
    let branch = BranchMove {
        party: FUNDING,
        round,
        from,
        to,
        code: None,
        leg: None,
        participant_code: None,
        log_sequence: None,
    };
    TransactionMove { branches: vec![branch], ..state_move(row, row.state) }
}

/// The call of a caller.
fn commit(tx_id: &str, rounds: u8) -> String {
    format!("SELECT transaction_commit('{OWNER}', '{tx_id}', {rounds})")
}
