//! Rebuilds a lost log from PostgreSQL alone.
//!
//! As long as only transfers move Spot, PostgreSQL proves every Spot balance:
//!
//! | transfers | prove | the rebuilt log holds |
//! |---|---|---|
//! | below PostgreSQL's watermark | `watermark_totals`, by user and asset | one record a balance |
//! | from the watermark on | the decisions behind their state | the decisions |
//! | under way | the same; UBSCore is asked again for the rest | the decisions, see below |
//!
//! After the balances comes a record of the watermark. [`redecision`](super::redecision) has the
//! table of states and decisions. Of a transfer under way a payment to Spot succeeds, and a
//! WITHDRAW of Spot is refused.
//!
//! Statuses of Spot accounts come from `admin_audit`. Each was written there before UBSCore was
//! asked for it.
//!
//! Everything is rehearsed on the ledger of the log: an empty one, or that of an interrupted
//! rebuild.

use std::collections::{BTreeMap, BTreeSet};

use engine::entry::Entry;
use engine::external::Outside;
use engine::ledger::{Ledger, Step};
use engine::totals::Totals;

use super::error::Error;
use super::externals::by_asset;
use super::redecision::{PlanStep, Repeated, lacking, pending, rehearse, renumbering};
use super::unproven::Unproven;
use super::verify::Stores;
use crate::postgres::adopt::Asked;
use crate::postgres::audit_reader::{Ending, Findings, Passed};
use crate::postgres::repair_writer::Renumbering;
use crate::postgres::store::Transfer;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::{Decision, Op, Participant, ReqId};

/// The plan of a rebuild.
#[derive(Debug, Default)]
pub struct Rebuild {
    /// PostgreSQL's watermark.
    pub watermark: u64,
    /// The beginning of the log: assets, the sums below the watermark, the watermark.
    pub carried: Vec<PlanStep>,
    /// The steps that decide again, in this order.
    pub steps: Vec<PlanStep>,
    /// Transfers from the watermark on.
    pub transfers: usize,
    /// Those of them that are not terminal.
    pub open: Vec<Transfer>,
    /// Transfers without a decision, each with the reason.
    pub left: Vec<(ReqId, Unproven)>,
    /// Record numbers that PostgreSQL still lacks, of operations that are decided again already.
    pub renumberings: Vec<Renumbering>,
}

/// A rebuild that is refused, or could not be planned. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A store cannot be read.
    #[error(transparent)]
    Store(#[from] Error),
    /// PostgreSQL.
    #[error("read PostgreSQL")]
    Postgres(#[from] crate::postgres::Error),
    /// The rows of PostgreSQL contradict each other.
    #[error("PostgreSQL contradicts itself, and so proves no balance: {0}")]
    Contradiction(String),
    /// Spot was not moved by transfers alone.
    #[error(
        "not only transfers have moved Spot: {0}; a rebuild knows nothing of it; next: restore the \
         log from its archive or a backup"
    )]
    Beside(String),
}

/// Plans the rebuild of a lost log from PostgreSQL. Changes nothing.
///
/// `ledger`: the ledger of the log: empty, or that of an interrupted rebuild.
///
/// # Errors
/// [`Refusal`].
pub async fn plan(stores: &Stores, asked: &Asked, mut ledger: Ledger) -> Result<Rebuild, Refusal> {
    let beside = asked.beside_transfers().await?;
    if !beside.is_empty() {
        return Err(Refusal::Beside(beside.join(", ")));
    }
    let mut reader = stores.reader.another();
    let catalog = stores.catalog.load_full();
    let mut wrong = Vec::new();
    for Findings { strange, unbalanced, .. } in reader.recount().await? {
        wrong.extend(strange);
        wrong.extend(
            unbalanced.iter().map(|found| {
                format!("user {}, asset {}: {}", found.user, found.asset.0, found.what)
            }),
        );
    }
    if !wrong.is_empty() {
        return Err(Refusal::Contradiction(wrong.join("; ")));
    }
    let (watermark, passed) = reader.passed().await?;
    let outside = by_asset(&reader.outside(watermark).await?);
    let carried = carry(&mut ledger, watermark, (&passed, &outside), stores)?;
    let names: BTreeSet<ReqId> = asked.numbered_from(watermark).await?.into_iter().collect();
    // The reader also returns the pages of its sweep.
    let mut pages = reader.open(&names).await?.pages;
    reader.close(Ending::Again).await?;
    pages.retain(|page| names.contains(&page.req_id));
    let witness = reader.witness().await?;
    let statuses = witness.statuses("-infinity", None).await?;
    let mut rebuild = Rebuild { watermark, carried, transfers: pages.len(), ..Rebuild::default() };
    let (mut lost, mut paying, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
    for page in &pages {
        match lacking(page, &ledger, 1) {
            Ok(found) => lost.extend(found),
            Err(why) => rebuild.left.push((page.req_id, why)),
        }
        let Some(transfer) = &page.transfer else { continue };
        if !transfer.state.is_terminal() {
            paying.extend(pending(transfer));
            let asked = transfer.state.asks(transfer.intent.direction, Participant::Spot);
            if asked.is_some_and(Op::takes) {
                leaving.push(transfer.intent.clone());
            }
            rebuild.open.push(transfer.clone());
        }
        rebuild.renumberings.extend(renumbering(transfer, &ledger));
    }
    rebuild.open.sort_by_key(|transfer| transfer.intent.order_number);
    let rehearsed = rehearse(&mut ledger, (lost, &[]), &paying, &[], (&catalog, Repeated::All));
    rebuild.steps = rehearsed.steps;
    rebuild.left.extend(rehearsed.left);
    // The client may know an end that PostgreSQL has not got yet. Only a success can have been
    // answered. So a payment on its way to Spot arrives, before any status could refuse it.
    let asked = paying.into_iter().flat_map(|(intent, op)| {
        let learn = catalog.by_id(intent.asset).cloned().map(PlanStep::Learn);
        learn.into_iter().chain([PlanStep::Ask { intent, op }])
    });
    // Here only a refusal can have been answered: a success is answered after Funding has the
    // money.
    let refused = leaving.into_iter().map(|intent| PlanStep::Decide {
        intent,
        op: Op::Withdraw,
        decision: Decision::Refused(Code::ResolvedByOperator),
    });
    let set = statuses.into_iter().map(|lost| PlanStep::SetStatus {
        user: lost.user,
        status: lost.status,
        why: format!("as {} did at {}", lost.actor, lost.at),
    });
    for step in asked.chain(refused).chain(set) {
        let Step::Append(entry) = ledger.step(&step.command()) else { continue };
        let refused = matches!(entry, Entry::Order { decision: Decision::Refused(_), .. });
        if refused && matches!(step, PlanStep::Ask { .. }) {
            // By the balance, by a status or by full tables: the service asks again in its normal
            // run, and records the refusal then.
            continue;
        }
        let answer = ledger.apply(&entry, ledger.sequence() + 1, 0);
        assert!(step.is_answer(&answer), "{step}: {answer:?}");
        rebuild.steps.push(step);
    }
    Ok(rebuild)
}

/// The beginning of the rebuilt log, carried out on `ledger`; empty if the log has it already.
fn carry(
    ledger: &mut Ledger,
    watermark: u64,
    (passed, outside): (&[Passed], &BTreeMap<AssetId, Outside>),
    stores: &Stores,
) -> Result<Vec<PlanStep>, Refusal> {
    if ledger.watermark() >= watermark {
        return Ok(Vec::new());
    }
    let catalog = stores.catalog.load();
    let mut wanted = Vec::new();
    let mut sums = BTreeMap::new();
    for Passed { user, asset, claimed: [withdrawals, deposits, refunds] } in passed {
        let totals = Totals { withdrawals: *withdrawals, deposits: *deposits, refunds: *refunds };
        if totals != Totals::default() {
            sums.insert((*user, *asset), totals);
        }
    }
    let assets = sums.keys().map(|(_, asset)| *asset);
    let assets: BTreeSet<_> = assets.chain(outside.keys().copied()).collect();
    wanted.extend(assets.iter().filter_map(|id| catalog.by_id(*id)).cloned().map(PlanStep::Learn));
    wanted.extend(sums.into_iter().map(|((user, asset), totals)| PlanStep::Carry {
        user,
        asset,
        totals,
    }));
    // Operations from the watermark on get their records at the next start.
    let of_asset = |(asset, outside): (&AssetId, &Outside)| PlanStep::CarryOutside {
        asset: *asset,
        outside: *outside,
    };
    wanted.extend(outside.iter().map(of_asset));
    wanted.push(PlanStep::Raise { order_number: watermark });
    let mut carried = Vec::new();
    for step in wanted {
        match ledger.step(&step.command()) {
            Step::Append(entry) => {
                let answer = ledger.apply(&entry, ledger.sequence() + 1, 0);
                assert!(step.is_answer(&answer), "{step}: {answer:?}");
                carried.push(step);
            }
            // An interrupted rebuild has done it.
            Step::Known(_) => {}
            Step::Violation(why) => {
                return Err(Refusal::Contradiction(format!("{step}: {why}")));
            }
            Step::Full(key) => {
                return Err(Refusal::Contradiction(format!("{step}: {key} is too small for it")));
            }
            Step::Forgotten => unreachable!("no order"),
        }
    }
    Ok(carried)
}
