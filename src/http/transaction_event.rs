//! JSON of the end of a transaction, as the streams of its users and endpoints get it.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::recharge_event::RechargeEventBody;
use super::schema::{
    AccountName, AmountText, SideName, TransactionIdText, TransactionStateName, TxIdText,
};
use super::wire::EventBody;
use crate::postgres::events::{TransactionEvent, UserEvent};
use crate::transaction::{BranchState, Party, TransactionLeg, TransactionRow, TransactionState};
use domain::account::UserId;
use domain::amount::units_text;
use domain::asset::Catalog;
use domain::transfer::Participant;

/// The end of a transaction, as the stream of one of its users sends it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransactionEvent)]
pub struct TransactionEventBody {
    /// Text: many JSON readers lose digits of a number this large.
    event_id: String,
    /// The user of the stream.
    user_id: u64,
    /// The time of the commit.
    at: Timestamp,
    /// The name that ubscore gave.
    #[schema(value_type = TransactionIdText)]
    transaction_id: String,
    /// The service that began it.
    owner: String,
    /// The name that its owner gave.
    #[schema(value_type = TxIdText)]
    tx_id: String,
    /// DONE: both stores have booked, and each participant has confirmed. CANCELLED: nothing has
    /// moved.
    #[schema(value_type = TransactionStateName)]
    state: &'static str,
    /// The legs of this user that were booked; of a CANCELLED one those that were given back.
    legs: Vec<LegOfUserBody>,
}

/// A leg, as one of its two users sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LegOfUser)]
pub struct LegOfUserBody {
    /// The account.
    #[schema(value_type = AccountName)]
    account: String,
    /// PAID: it has left the account; RECEIVED: it has reached it. Of a CANCELLED transaction it
    /// would have.
    #[schema(value_type = SideName)]
    side: &'static str,
    /// The asset's symbol.
    asset: String,
    /// The amount.
    #[schema(value_type = AmountText)]
    amount: String,
}

/// The end of a transaction, as endpoints of the operator and followers get it.
#[derive(Debug, Serialize)]
struct ToldBody {
    event_id: String,
    at: Timestamp,
    transaction_id: String,
    owner: String,
    tx_id: String,
    state: &'static str,
    legs: Vec<LegToldBody>,
}

#[derive(Debug, Serialize)]
struct LegToldBody {
    account: String,
    /// A user of the account, or a named place.
    from: serde_json::Value,
    to: serde_json::Value,
    asset: String,
    amount: String,
}

/// The legs that were booked, or that were given back if it is CANCELLED, each with the store of
/// its branch. A leg between the stores stands in both.
fn ended(row: &TransactionRow) -> impl Iterator<Item = (Participant, &TransactionLeg)> {
    let state = match row.state {
        TransactionState::Cancelled => BranchState::Cancelled,
        _ => BranchState::Confirmed,
    };
    let ended = row.branches.iter().filter(move |branch| branch.state == state);
    let of_stores = ended.filter_map(|branch| match branch.party {
        Party::Store(store) => Some((store, &branch.legs)),
        Party::Service(_) => None,
    });
    of_stores.flat_map(|(store, legs)| legs.iter().map(move |leg| (store, leg)))
}

/// The asset and the amount of a leg. An asset without a row, deleted by hand, is named by its
/// number.
fn amount(leg: &TransactionLeg, catalog: &Catalog) -> (String, String) {
    let symbol = catalog.by_id(leg.asset).map(|asset| asset.symbol.clone());
    let amount = units_text(leg.amount.into(), catalog.precision(leg.asset));
    (symbol.unwrap_or_else(|| format!("#{}", leg.asset.0)), amount)
}

impl TransactionEventBody {
    /// The body for one user, as JSON text. The same event gives the same text every time.
    pub fn json(event: &TransactionEvent, user: UserId, catalog: &Catalog) -> String {
        let row = &event.transaction;
        let sides = move |store: Participant, leg: &TransactionLeg| {
            let sides = [(leg.from, "PAID"), (leg.to, "RECEIVED")];
            let own = sides.into_iter().filter(move |(of, _)| of.user_in(store) == Some(user));
            own.map(|(_, side)| side)
        };
        let legs = ended(row).flat_map(|(store, leg)| {
            let (asset, amount) = amount(leg, catalog);
            sides(store, leg).map(move |side| LegOfUserBody {
                account: store.account().to_owned(),
                side,
                asset: asset.clone(),
                amount: amount.clone(),
            })
        });
        let body = TransactionEventBody {
            event_id: event.id.to_string(),
            user_id: user.number(),
            at: event.at,
            transaction_id: row.id.to_string(),
            owner: row.name.owner.clone(),
            tx_id: row.name.tx_id.as_str().to_owned(),
            state: row.state.name(),
            legs: legs.collect(),
        };
        serde_json::to_string(&body).expect("our own structures have no failing serializer")
    }
}

/// The body of an event for an endpoint, as JSON text. The same event gives the same text every
/// time.
pub fn posted(event: &UserEvent, catalog: &Catalog) -> String {
    let TransactionEvent { id, at, transaction: row } = match event {
        UserEvent::Transfer(event) => return EventBody::json(event, catalog),
        UserEvent::Recharge(event) => return RechargeEventBody::json(event, catalog),
        UserEvent::Transaction(event) => event,
    };
    // A leg between the stores is told once, with the account that pays.
    let once = ended(row).filter(|(store, leg)| leg.from.store().is_none_or(|of| of == *store));
    let legs = once.map(|(store, leg)| {
        let (asset, amount) = amount(leg, catalog);
        let (account, from, to) =
            (store.account().to_owned(), leg.from.value(store), leg.to.value(store));
        LegToldBody { account, from, to, asset, amount }
    });
    let body = ToldBody {
        event_id: id.to_string(),
        at: *at,
        transaction_id: row.id.to_string(),
        owner: row.name.owner.clone(),
        tx_id: row.name.tx_id.as_str().to_owned(),
        state: row.state.name(),
        legs: legs.collect(),
    };
    serde_json::to_string(&body).expect("our own structures have no failing serializer")
}
