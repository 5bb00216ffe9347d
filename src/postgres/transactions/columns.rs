//! A flight as `transaction_flight` reads it.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio_postgres::types::ToSql;

use super::{RoundAccept, TransactionMove};
use crate::postgres::columns::{Id, bigint, code_number};
use crate::transaction::write_legs;

/// Rounds as columns: one element for each round, and behind `places` one for each branch.
#[derive(Default)]
pub(super) struct RoundColumns {
    ids: Vec<Id>,
    order_numbers: Vec<i64>,
    owners: Vec<String>,
    tx_ids: Vec<String>,
    rounds: Vec<i16>,
    decides: Vec<i16>,
    ats: Vec<Timestamp>,
    expiries: Vec<Timestamp>,
    fingerprints: Vec<Vec<u8>>,
    /// A JSON array each.
    followers: Vec<String>,
    /// The round of each branch, from 1.
    places: Vec<i32>,
    participants: Vec<String>,
    last: Vec<bool>,
    legs: Vec<String>,
    payloads: Vec<String>,
}

impl RoundColumns {
    pub(super) fn of(accepts: &[&RoundAccept]) -> RoundColumns {
        let mut columns = RoundColumns::default();
        for accept in accepts {
            columns.push(accept);
        }
        columns
    }

    fn push(&mut self, accept: &RoundAccept) {
        let RoundAccept { round, id, order_number, at } = accept;
        self.ids.push(Id::of(*id));
        self.order_numbers.push(bigint(*order_number));
        self.owners.push(round.name.owner.clone());
        self.tx_ids.push(round.name.tx_id.as_str().to_owned());
        self.rounds.push(i16::from(round.round));
        self.decides.push(round.decider.number());
        self.ats.push(micros(*at));
        self.expiries.push(expiry(*at, round.ttl_ms));
        self.fingerprints.push(round.fingerprint.to_vec());
        // A repeat is sent whatever it says now: the row answers, by the fingerprint.
        let followers: Vec<String> = round.followers.iter().map(|name| sayable(name)).collect();
        self.followers.push(serde_json::to_string(&followers).expect("plain words"));
        let place = i32::try_from(self.ids.len()).expect("few rounds");
        for branch in round.branches() {
            self.places.push(place);
            self.participants.push(sayable(branch.party.name()));
            self.last.push(branch.last);
            self.legs.push(write_legs(&branch.party, &branch.legs));
            self.payloads.push(branch.payload.to_string());
        }
    }

    /// The arguments of `transaction_flight` behind the moves.
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 15] {
        [
            &self.ids,
            &self.order_numbers,
            &self.owners,
            &self.tx_ids,
            &self.rounds,
            &self.decides,
            &self.ats,
            &self.expiries,
            &self.fingerprints,
            &self.followers,
            &self.places,
            &self.participants,
            &self.last,
            &self.legs,
            &self.payloads,
        ]
    }
}

/// Moves as JSON.
pub(super) fn moves_text(moves: &[TransactionMove]) -> String {
    let words: Vec<MoveWords> = moves.iter().map(MoveWords::of).collect();
    serde_json::to_string(&words).expect("plain words")
}

/// A time as PostgreSQL keeps it.
pub(super) fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).expect("it is one")
}

/// The time beyond which an undecided transaction is aborted.
pub(super) fn expiry(at: Timestamp, ttl_ms: u64) -> Timestamp {
    let ttl = SignedDuration::from_millis(i64::try_from(ttl_ms).unwrap_or(i64::MAX));
    micros(at).checked_add(ttl).unwrap_or(Timestamp::MAX)
}

/// Text that PostgreSQL can keep: it has no zero byte.
pub(super) fn sayable(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// A [`TransactionMove`] as `transaction_record` reads it.
#[derive(Serialize)]
pub(super) struct MoveWords {
    id: String,
    rounds: u8,
    before: i16,
    after: i16,
    author: String,
    code: Option<i16>,
    detail: Option<String>,
    seal: bool,
    stores_ended: bool,
    note_by: Option<String>,
    note: Option<String>,
    branches: Vec<BranchWords>,
}

#[derive(Serialize)]
struct BranchWords {
    party: String,
    round: u8,
    before: i16,
    after: i16,
    code: Option<i16>,
    leg: Option<u8>,
    participant_code: Option<String>,
    log_sequence: Option<u64>,
}

impl MoveWords {
    pub(super) fn of(one: &TransactionMove) -> MoveWords {
        let branches = one.branches.iter().map(|branch| BranchWords {
            party: branch.party.name().to_owned(),
            round: branch.round,
            before: branch.from.number(),
            after: branch.to.number(),
            code: branch.code.map(code_number),
            leg: branch.leg,
            participant_code: branch.participant_code.as_deref().map(sayable),
            log_sequence: branch.log_sequence,
        });
        MoveWords {
            id: format!("{:032x}", one.id.number()),
            rounds: one.rounds,
            before: one.from.number(),
            after: one.to.number(),
            author: sayable(&one.by),
            code: one.code.map(code_number),
            detail: one.detail.as_deref().map(sayable),
            seal: one.seal,
            stores_ended: one.stores_ended,
            note_by: one.note.as_ref().map(|note| sayable(&note.by)),
            note: one.note.as_ref().map(|note| sayable(&note.text)),
            branches: branches.collect(),
        }
    }
}
