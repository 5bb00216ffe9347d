//! The rows that decisions rest on, as they are read.

use tokio_postgres::{Client, Row, Statement};

use super::{TRANSFER_COLUMNS, decision, recharges, transfer_from_row, unreadable};
use crate::postgres::Error;
use crate::postgres::columns::{self, Id, asset_number};
use crate::postgres::flight::{Balance, Decided, Found, Key, Wanted};
use crate::postgres::store::External;
use domain::asset::Catalog;
use domain::hold::{Hold, HoldKey, HoldState};

/// The statements of [`read`]. All but the first return the place of the wanted row.
pub(super) struct Reads {
    accounts: Statement,
    balances: Statement,
    transfers: Statement,
    cids: Statement,
    externals: Statement,
    holds: Statement,
    freezes: Statement,
}

impl Reads {
    pub(super) async fn prepare(client: &Client) -> Result<Reads, tokio_postgres::Error> {
        Ok(Reads {
            accounts: client.prepare("SELECT user_id, status FROM accounts_tb \
                         WHERE user_id = ANY ($1)").await?,
            balances: client.prepare("SELECT place, available, frozen, version, special \
             FROM unnest($1::bigint[], $2::integer[]) WITH ORDINALITY AS a (user_id, asset_id, place) \
             CROSS JOIN LATERAL (SELECT available, frozen, version, special FROM balances_tb b \
               WHERE b.user_id = a.user_id AND b.asset_id = a.asset_id OFFSET 0) AS b").await?,
            transfers: client.prepare(&format!(
            "SELECT {TRANSFER_COLUMNS}, place FROM unnest($1::uuid[]) WITH ORDINALITY AS a (name, place) \
             CROSS JOIN LATERAL (SELECT * FROM transfers_tb WHERE req_id = a.name OFFSET 0) AS t"
            )).await?,
            cids: client.prepare(&format!(
            "SELECT {TRANSFER_COLUMNS}, place \
             FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS a (owner, name, place) \
             CROSS JOIN LATERAL (SELECT * FROM transfers_tb \
               WHERE user_id = a.owner AND cid = a.name OFFSET 0) AS t"
            )).await?,
            externals: client.prepare("SELECT place, x.code, x.user_id, x.asset_id, x.amount, x.op, x.order_number, \
               x.balance_after \
             FROM unnest($1::text[]) WITH ORDINALITY AS a (name, place) \
             CROSS JOIN LATERAL (SELECT code, user_id, asset_id, amount, op, order_number, balance_after \
               FROM external_operations WHERE idem_key = a.name OFFSET 0) AS x").await?,
            holds: client.prepare("SELECT place, h.order_number, h.user_id, h.asset_id, h.state, h.amount, \
               h.round, h.asked, h.pays, h.paid, h.round_code, h.taken, h.brought, h.purpose, h.special, \
               h.deposited, h.withdrawn \
             FROM unnest($1::text[]) WITH ORDINALITY AS a (name, place) \
             CROSS JOIN LATERAL (SELECT * FROM funding_holds WHERE hold_key = a.name OFFSET 0) AS h").await?,
            freezes: client.prepare("SELECT place, amount \
             FROM unnest($1::bigint[], $2::integer[], $3::integer[]) WITH ORDINALITY \
               AS a (user_id, asset_id, purpose, place) \
             CROSS JOIN LATERAL (SELECT amount FROM freezes_tb f \
               WHERE f.user_id = a.user_id AND f.asset_id = a.asset_id \
                 AND f.purpose = a.purpose OFFSET 0) AS f").await?,
        })
    }
}

/// Reads the wanted rows.
pub(super) async fn read(
    client: &Client,
    reads: &Reads,
    wanted: &Wanted,
    catalog: &Catalog,
) -> Result<Found, Error> {
    let mut found = Found::default();
    if !wanted.accounts.is_empty() {
        let users: Vec<i64> = wanted.accounts.iter().map(|user| user.bigint()).collect();
        for row in client.query(&reads.accounts, &[&users]).await? {
            let Some(user) = columns::user(&row, 0)? else { continue };
            let number: i16 = row.try_get(1)?;
            match columns::account_status(number) {
                Some(status) => found.accounts.push((user, status)),
                None => {
                    let what = format!("account of {user}: status {number}");
                    found.unreadable.push((Key::Account(user), what));
                }
            }
        }
    }
    if !wanted.balances.is_empty() {
        let users: Vec<i64> = wanted.balances.iter().map(|(user, _)| user.bigint()).collect();
        let assets: Vec<i32> =
            wanted.balances.iter().map(|(_, asset)| asset_number(*asset)).collect();
        for row in client.query(&reads.balances, &[&users, &assets]).await? {
            let (user, asset) = wanted.balances[place(&row)?];
            match balance(&row)? {
                Some(balance) => found.balances.push((user, asset, balance)),
                None => {
                    let what = format!("balance of {user} in asset {}", asset.0);
                    found.unreadable.push((Key::Balance(user, asset), what));
                }
            }
        }
    }
    if !wanted.transfers.is_empty() {
        let names = Id::all(&wanted.transfers);
        for row in client.query(&reads.transfers, &[&names]).await? {
            let key = |place: usize| Key::ReqId(wanted.transfers[place]);
            found.transfer(&row, catalog, key)?;
        }
    }
    if !wanted.cids.is_empty() {
        let users: Vec<i64> = wanted.cids.iter().map(|(user, _)| user.bigint()).collect();
        let cids: Vec<&str> = wanted.cids.iter().map(|(_, cid)| cid.as_str()).collect();
        for row in client.query(&reads.cids, &[&users, &cids]).await? {
            let key = |place: usize| {
                let (user, cid) = &wanted.cids[place];
                Key::Cid(*user, cid.clone())
            };
            found.transfer(&row, catalog, key)?;
        }
    }
    if !wanted.externals.is_empty() {
        for row in client.query(&reads.externals, &[&wanted.externals]).await? {
            let idem_key = &wanted.externals[place(&row)?];
            match decided(&row, idem_key, catalog) {
                Ok(decided) => found.externals.push(decided),
                Err(error) => {
                    found.unreadable.push((Key::External(idem_key.clone()), error.to_string()));
                }
            }
        }
    }
    if !wanted.holds.is_empty() {
        let names: Vec<&str> = wanted.holds.iter().map(|key| key.as_str()).collect();
        for row in client.query(&reads.holds, &[&names]).await? {
            let key = &wanted.holds[place(&row)?];
            match hold(&row, key, catalog) {
                Ok(hold) => found.holds.push((key.clone(), hold)),
                Err(error) => found.unreadable.push((Key::Hold(key.clone()), error.to_string())),
            }
        }
    }
    if !wanted.recharges.is_empty() {
        recharges::read(client, &wanted.recharges, catalog, &mut found).await?;
    }
    if !wanted.freezes.is_empty() {
        let users: Vec<i64> = wanted.freezes.iter().map(|(user, ..)| user.bigint()).collect();
        let assets: Vec<i32> =
            wanted.freezes.iter().map(|(_, asset, _)| asset_number(*asset)).collect();
        let purposes: Vec<i32> =
            wanted.freezes.iter().map(|(.., purpose)| i32::from(*purpose)).collect();
        for row in client.query(&reads.freezes, &[&users, &assets, &purposes]).await? {
            let key = wanted.freezes[place(&row)?];
            match columns::units(&row, 1) {
                Some(units) => found.freezes.push((key, units)),
                None => {
                    let (user, asset, purpose) = key;
                    let what = format!("freeze of {user} in asset {} for {purpose}", asset.0);
                    found.unreadable.push((Key::Freeze(user, asset, purpose), what));
                }
            }
        }
    }
    Ok(found)
}

impl Found {
    /// Adds a row of [`TRANSFER_COLUMNS`] and its place.
    fn transfer(
        &mut self,
        row: &Row,
        catalog: &Catalog,
        key: impl Fn(usize) -> Key,
    ) -> Result<(), Error> {
        match transfer_from_row(row, catalog) {
            Ok(transfer) => self.transfers.push(transfer),
            Err(error) => {
                let place: i64 = row.try_get("place")?;
                let place = usize::try_from(place).expect("counted from 1") - 1;
                self.unreadable.push((key(place), error.to_string()));
            }
        }
        Ok(())
    }
}

/// The first column: the place of the wanted row, from 0.
fn place(row: &Row) -> Result<usize, Error> {
    let place: i64 = row.try_get(0)?;
    Ok(usize::try_from(place).expect("counted from 1") - 1)
}

/// A balance behind its place; `None`: it is not one.
fn balance(row: &Row) -> Result<Option<Balance>, Error> {
    let (available, frozen) = (columns::signed(row, 1), columns::units(row, 2));
    let version = u64::try_from(row.try_get::<_, i64>(3)?).ok();
    // Only a special one may be below zero.
    let special: bool = row.try_get(4)?;
    let available = available.filter(|available| special || *available >= 0);
    let all = available.zip(frozen).zip(version);
    Ok(all.map(|((available, frozen), version)| Balance { available, frozen, version }))
}

/// An external operation behind a place.
fn decided(row: &Row, idem_key: &str, catalog: &Catalog) -> Result<Decided, Error> {
    let bad = |what: &str| unreadable("external_operations", format!("{idem_key}: {what}"));
    let asset = columns::asset(row, 3, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let asset = asset.id;
    let user = columns::user(row, 2)?.ok_or_else(|| bad("user_id"))?;
    let amount = columns::amount(row, 4)?.ok_or_else(|| bad("amount"))?;
    let op = columns::op(row, 5)?.ok_or_else(|| bad("op"))?;
    let order_number = columns::count(row, 6, "external_operations")?;
    let balance_after = columns::signed_or_null(row, 7).ok_or_else(|| bad("balance_after"))?;
    let (idem_key, actor) = (idem_key.to_owned(), String::new());
    let external = External { idem_key, op, user, asset, amount, actor, order_number };
    Ok(Decided { external, decision: decision(row, 1)?, balance_after })
}

/// A hold behind a place.
fn hold(row: &Row, key: &HoldKey, catalog: &Catalog) -> Result<Hold, Error> {
    const TABLE: &str = "funding_holds";
    let bad = |what: &str| unreadable(TABLE, format!("{key}: {what}"));
    let asset = columns::asset(row, 3, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let units = |column| columns::count(row, column, TABLE);
    Ok(Hold {
        order_number: units(1)?,
        user: columns::user(row, 2)?.ok_or_else(|| bad("user_id"))?,
        asset: asset.id,
        state: HoldState::from_number(row.try_get(4)?).ok_or_else(|| bad("state"))?,
        amount: units(5)?,
        round: u8::try_from(row.try_get::<_, i16>(6)?).map_err(|_| bad("round"))?,
        asked: units(7)?,
        pays: row.try_get(8)?,
        paid: row.try_get(9)?,
        round_code: columns::code(row, 10, TABLE)?,
        taken: units(11)?,
        brought: units(12)?,
        purpose: u16::try_from(row.try_get::<_, i32>(13)?).map_err(|_| bad("purpose"))?,
        special: row.try_get(14)?,
        deposited: units(15)?,
        withdrawn: units(16)?,
    })
}
