//! Rows that another session has changed under a flight.

use std::fmt;

use super::draft::Known;
use super::memory::Memory;
use super::{Balance, Flight};
use crate::postgres::store::{Reply, Sought};
use domain::account::{AccountStatus, UserId};
use domain::amount::{signed_text, units_text};
use domain::asset::{AssetId, Catalog};
use domain::hold::Hold;
use domain::transfer::{ReqId, State};

/// The most rows in a text.
const NAMED: usize = 5;

/// The rows of a flight that PostgreSQL holds otherwise.
#[derive(Debug, Default)]
pub struct Differences {
    /// The owners of accounts and balances.
    pub users: Vec<UserId>,
    /// Transfers.
    pub req_ids: Vec<ReqId>,
    /// One text for each row: the row, the old values and the new ones.
    texts: Vec<String>,
}

impl Differences {
    /// Compares the rows that a flight rested on with those that were read after it.
    pub fn of(flight: &Flight, memory: &Memory, known: &Known, catalog: &Catalog) -> Differences {
        let mut differences = Differences::default();
        let status = |status: Option<AccountStatus>| status.map_or("no row", AccountStatus::name);
        for row in &flight.accounts {
            let found = memory.account(row.user);
            if found != Some(row.before) {
                let found = found.map_or("a row that cannot be read", status);
                let text =
                    format!("account of user {}: {}, now {found}", row.user, status(row.before));
                differences.users.push(row.user);
                differences.texts.push(text);
            }
        }
        for row in &flight.balances {
            let found = memory.balance(row.user, row.asset);
            if found != Some(row.before) {
                let text = |held| balance_text(held, row.asset, catalog);
                let found = found.map_or("a row that cannot be read".to_owned(), text);
                let asset = catalog.by_id(row.asset).map_or("?", |asset| &asset.symbol);
                let text = format!("user {}, {asset}: {}, now {found}", row.user, text(row.before));
                differences.users.push(row.user);
                differences.texts.push(text);
            }
        }
        for row in &flight.holds {
            let found = known.held(&row.key);
            if found != row.before.as_ref() {
                let text = |hold: Option<&Hold>| match hold {
                    None => "no row".to_owned(),
                    Some(hold) => {
                        format!("{:?} round {} amount {}", hold.state, hold.round, hold.amount)
                    }
                };
                let (before, found) = (text(row.before.as_ref()), text(found));
                differences.users.push(row.after.user);
                differences.texts.push(format!("hold {}: {before}, now {found}", row.key));
            }
        }
        for row in &flight.freezes {
            let found = known.frozen(row.user, row.asset, row.purpose);
            if found != row.before {
                let text = |units: Option<u128>| {
                    units.map_or("no row".to_owned(), |units| format!("{units} smallest units"))
                };
                let (before, found) = (text(row.before), text(found));
                let freeze = format!("freeze of purpose {}, user {}", row.purpose, row.user);
                differences.users.push(row.user);
                differences.texts.push(format!("{freeze}: {before}, now {found}"));
            }
        }
        // Otherwise no transfer was read.
        let moved = if known.careful { flight.moved.as_slice() } else { &[] };
        for moved in moved {
            let req_id = moved.to.transfer.intent.req_id;
            let found = match known.sought(&Sought::ReqId(req_id)) {
                Reply::Found(found) => found.map(|transfer| transfer.state),
                _ => None,
            };
            if found != Some(moved.from) {
                let found = found.map_or("no row that can be read", State::name);
                let text = format!("transfer {req_id}: {}, now {found}", moved.from.name());
                differences.req_ids.push(req_id);
                differences.texts.push(text);
            }
        }
        differences
    }
}

fn balance_text(held: Option<Balance>, asset: AssetId, catalog: &Catalog) -> String {
    let Some(Balance { available, frozen, version }) = held else { return "no row".to_owned() };
    let precision = catalog.by_id(asset).map_or(0, |asset| asset.precision);
    let available = signed_text(available, precision);
    let frozen = units_text(frozen, precision);
    format!("available {available} frozen {frozen} version {version}")
}

impl fmt::Display for Differences {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.texts.len().min(NAMED);
        out.write_str(&self.texts[..named].join("; "))?;
        match self.texts.len() - named {
            0 => Ok(()),
            more => write!(out, "; and {more} more"),
        }
    }
}
