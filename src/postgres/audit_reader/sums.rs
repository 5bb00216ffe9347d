//! Rows of the journal that are not folded yet, added up by account.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

use crate::postgres::Error;
use crate::postgres::columns::Numeric;
use crate::postgres::flight::entries::Entry;
use crate::postgres::journal::{self, Checker, DamagedRow, Fault};
use domain::transfer::Op;

/// Rows that one round reads, and one transaction folds.
const FOLD_ROWS: usize = 1_000;
/// A round reads no further row behind this many entries: they are in memory by account.
const FOLD_ENTRIES: usize = 20_000;
/// Rows read by one statement.
const ROWS_PER_READ: usize = 250;

/// The user and the asset, as PostgreSQL has them.
pub(super) type Account = (i64, i32);

/// The last flight of each shard.
pub(super) type Flights = BTreeMap<u32, u64>;

/// The entries of one account.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// All of them, smallest units.
    pub(super) all: i128,
    /// Those of external operations.
    pub(super) external: i128,
    /// The highest version of the balance.
    version: u64,
}

/// Sums by account.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(BTreeMap<Account, Sum>);

impl Sums {
    fn add(&mut self, entry: &Entry) {
        let Some((account, sum)) = posted(entry) else { return };
        let held = self.0.entry(account).or_default();
        held.all += sum.all;
        held.external += sum.external;
        held.version = held.version.max(sum.version);
    }

    /// Adds other sums.
    pub(super) fn merge(&mut self, other: &Sums) {
        for (account, sum) in &other.0 {
            let held = self.0.entry(*account).or_default();
            held.all += sum.all;
            held.external += sum.external;
            held.version = held.version.max(sum.version);
        }
    }

    /// The accounts of the users above `after` up to `until`, and those of `also`.
    pub(super) fn between(&self, (after, until): (i64, i64), also: &Sums) -> Sums {
        let range = self.0.iter().filter(|((user, _), _)| *user > after && *user <= until);
        let mut part: BTreeMap<_, _> = range.map(|(account, sum)| (*account, *sum)).collect();
        let also = also.0.keys().filter_map(|account| Some((*account, *self.0.get(account)?)));
        part.extend(also);
        Sums(part)
    }

    /// As arrays: users, assets, and sums.
    pub(super) fn columns(&self, of: impl Fn(&Sum) -> i128) -> Columns {
        let mut columns = Columns::default();
        for (account, sum) in &self.0 {
            columns.users.push(account.0);
            columns.assets.push(account.1);
            columns.sums.push(Numeric(of(sum)));
        }
        columns
    }
}

/// Arguments for the functions of the audit.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) users: Vec<i64>,
    pub(super) assets: Vec<i32>,
    pub(super) sums: Vec<Numeric>,
}

/// The account and the sums of an entry that posts.
fn posted(entry: &Entry) -> Option<(Account, Sum)> {
    let (op, user, asset, available, frozen, version) = match *entry {
        Entry::Posted { op, user, asset, available, frozen, version, .. } => {
            (Op::from_number(op), user, asset, available, frozen, version)
        }
        Entry::Held { user, asset, available, frozen, version, .. } => {
            (None, user, asset, available, frozen, version)
        }
        Entry::Passed { .. } | Entry::Recharged { .. } => return None,
    };
    let all = available + frozen;
    let external = op.is_some_and(Op::is_external);
    let external = if external { all } else { 0 };
    // A number that no column can hold names no account: the comparison reports it.
    let account = (i64::try_from(user).unwrap_or(-1), i32::try_from(asset).unwrap_or(-1));
    Some((account, Sum { all, external, version }))
}

/// The next rows of all shards.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The last flight of each shard before it.
    pub(super) from: Flights,
    /// The last flight of each shard in it.
    pub(super) to: Flights,
    /// Its entries.
    pub(super) sums: Sums,
    /// The order numbers of the transfers in it.
    pub(super) transfers: BTreeSet<u64>,
    /// There are more rows.
    pub(super) behind: bool,
    /// Where it cannot go on.
    pub(super) damaged: Vec<DamagedRow>,
}

/// What a walk along one shard may read.
struct Budget {
    rows: usize,
    entries: usize,
}

/// The end of a walk along one shard.
struct Walked {
    reached: u64,
    damaged: Option<DamagedRow>,
    more: bool,
}

/// Reads the rows of a shard behind a flight.
async fn walk(
    client: &Client,
    shard: u32,
    from: u64,
    budget: &mut Budget,
    mut take: impl FnMut(&Entry),
) -> Result<Walked, Error> {
    let mut checker = Checker::behind(shard, from);
    // With the row before the next, if it is still there: the next one must fit it.
    let mut next = from.max(1);
    loop {
        let rows = journal::page(client, shard, next, ROWS_PER_READ).await?;
        for row in &rows {
            if row.flight == from {
                checker.precede(row);
                continue;
            }
            if budget.rows == 0 || budget.entries == 0 {
                return Ok(Walked { reached: checker.flight(), damaged: None, more: true });
            }
            match checker.next(row) {
                Ok(entries) => {
                    budget.rows -= 1;
                    budget.entries = budget.entries.saturating_sub(entries.len());
                    entries.iter().for_each(&mut take);
                }
                Err(damaged) => {
                    let (reached, damaged) = (checker.flight(), Some(damaged));
                    return Ok(Walked { reached, damaged, more: false });
                }
            }
        }
        if rows.len() < ROWS_PER_READ {
            return Ok(Walked { reached: checker.flight(), damaged: None, more: false });
        }
        next = checker.flight() + 1;
    }
}

/// Reads the next rows of every shard.
pub(super) async fn part(client: &Client, from: &Flights) -> Result<Part, Error> {
    let shards = journal::shards(client).await?;
    let mut part = Part { from: from.clone(), to: from.clone(), ..Part::default() };
    let mut budget = Budget { rows: FOLD_ROWS, entries: FOLD_ENTRIES };
    for (&shard, &folded) in from {
        let last = shards.get(&shard).map_or(0, |(_, last)| *last);
        if last < folded {
            let fault = Fault::Ended { last, folded };
            part.damaged.push(DamagedRow { shard, flight: last + 1, fault });
        }
    }
    let lags = shards.iter().filter_map(|(&shard, &(_, last))| {
        let begins = from.get(&shard).copied().unwrap_or(0);
        (last > begins).then(|| (last - begins, shard, begins))
    });
    // The longest first: a busy shard must not take the whole budget of every round.
    let mut lags: Vec<_> = lags.collect();
    lags.sort_unstable_by_key(|&(lag, ..)| Reverse(lag));
    for (_, shard, begins) in lags {
        let (sums, transfers) = (&mut part.sums, &mut part.transfers);
        let take = |entry: &Entry| {
            sums.add(entry);
            let of_transfer = match entry {
                Entry::Passed { .. } => true,
                Entry::Held { .. } | Entry::Recharged { .. } => false,
                Entry::Posted { op, .. } => !Op::from_number(*op).is_some_and(Op::is_external),
            };
            if of_transfer {
                transfers.insert(entry.order_number());
            }
        };
        let walked = walk(client, shard, begins, &mut budget, take).await?;
        if walked.reached > begins {
            part.to.insert(shard, walked.reached);
        }
        part.behind |= walked.more;
        part.damaged.extend(walked.damaged);
    }
    Ok(part)
}

/// An account whose balance is not equal to its sums, as it was read.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) account: Account,
    /// Smallest units.
    pub(super) difference: i128,
    /// The version of the balance, 0 if there is none.
    pub(super) version: i64,
}

impl Part {
    /// Whether the last entry of this account in this part is that of the balance. Otherwise a
    /// later part has more of them.
    pub(super) fn is_last(&self, candidate: &Candidate) -> bool {
        let sum = self.sums.0.get(&candidate.account);
        sum.is_some_and(|sum| i64::try_from(sum.version).is_ok_and(|v| v >= candidate.version))
    }

    /// The candidates that the rows behind this part do not explain. A balance was read before
    /// these rows, so its version names those that it includes.
    pub(super) async fn unexplained(
        &self,
        client: &Client,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Account>, Error> {
        let mut behind: BTreeMap<Account, (i64, i128)> =
            candidates.iter().map(|one| (one.account, (one.version, 0))).collect();
        let take = |entry: &Entry| {
            let Some((account, sum)) = posted(entry) else { return };
            if let Some((version, units)) = behind.get_mut(&account)
                && i64::try_from(sum.version).is_ok_and(|of| of <= *version)
            {
                *units += sum.all;
            }
        };
        later(client, &self.to, take).await?;
        let open = |one: &Candidate| {
            let (_, sum) = behind[&one.account];
            one.difference != sum
        };
        Ok(candidates.iter().filter(|one| open(one)).map(|one| one.account).collect())
    }
}

/// Reads all rows behind these flights, in the shards that there are. A damaged row ends its shard.
pub(super) async fn later(
    client: &Client,
    from: &Flights,
    mut take: impl FnMut(&Entry),
) -> Result<(), Error> {
    for (shard, (_, last)) in journal::shards(client).await? {
        let begins = from.get(&shard).copied().unwrap_or(0);
        let mut budget = Budget { rows: usize::MAX, entries: usize::MAX };
        if last > begins {
            walk(client, shard, begins, &mut budget, &mut take).await?;
        }
    }
    Ok(())
}

/// The sums of these accounts behind these flights, also those without an entry; of every account
/// that has one if `accounts` is `None`.
pub(super) async fn sums_behind(
    client: &Client,
    from: &Flights,
    accounts: Option<&[Account]>,
) -> Result<Sums, Error> {
    let mut sums = Sums::default();
    for account in accounts.unwrap_or_default() {
        sums.0.insert(*account, Sum::default());
    }
    let take = |entry: &Entry| {
        let wanted = |account| accounts.is_none() || sums.0.contains_key(&account);
        if posted(entry).is_some_and(|(account, _)| wanted(account)) {
            sums.add(entry);
        }
    };
    later(client, from, take).await?;
    Ok(sums)
}
