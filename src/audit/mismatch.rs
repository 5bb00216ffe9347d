//! A finding of the audit: the user, asset and transfer that it is about, its kind, and its text
//! for logs, reports and alerts.

use std::fmt;

use domain::account::UserId;
use domain::amount::{signed_text, units_text};
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Op, ReqId, State};
use wal::Sequence;

use crate::postgres::audit_reader::{Misheld, Unbalanced};
use crate::postgres::journal::DamagedRow;
use engine::external::Outside;
use engine::totals::Totals;

/// One thing that does not add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The user, if one can be named.
    pub user: Option<UserId>,
    /// The asset.
    pub asset: Option<AssetId>,
    /// The transfer.
    pub req_id: Option<ReqId>,
    /// The order number of the external operation.
    pub external: Option<u64>,
    /// What is wrong.
    pub kind: Kind,
    difference: Difference,
    /// Decimals of the asset; 0 if the catalog does not have it.
    precision: u8,
}

/// The money that a user has too much.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Difference {
    /// No amount is known.
    Unknown,
    /// Smallest units; negative if money is missing.
    Units(i128),
    /// Decimal text; negative if money is missing.
    Decimal(String),
}

/// The kinds of findings. Amounts are smallest units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL counts from an incarnation that others have followed.
    OlderDatabase {
        /// The latest incarnation in the log.
        latest: u64,
        /// The last one that PostgreSQL has given.
        known: u64,
    },
    /// The log ends before the record up to which PostgreSQL has been compared.
    LogBehind {
        /// The last record of the log.
        durable: Sequence,
        /// The last record that was compared.
        read: Sequence,
    },
    /// The log has been cut after a record up to which PostgreSQL has not been compared.
    DatabaseBehind {
        /// The last record that was compared.
        read: Sequence,
        /// The segment that is missing.
        missing: String,
    },
    /// PostgreSQL has forgotten how far it had been compared.
    WentBack {
        /// The last record that was compared.
        read: Sequence,
        /// The last one by PostgreSQL.
        back_at: Sequence,
    },
    /// PostgreSQL lacks answered commits.
    LostCommits(String),
    /// A record of the log cannot be read.
    DamagedLog(String),
    /// A row of Funding's journal cannot be read, or is missing.
    DamagedJournal(DamagedRow),
    /// PostgreSQL has a row that the service never writes.
    StrangeRow(String),
    /// A balance is not the sum of its operations.
    Unbalanced(Unbalanced),
    /// The frozen part of a balance is not the sum of the freezes and the open holds.
    Misheld(Misheld),
    /// A row of a transfer cannot be read.
    UnreadableRow(String),
    /// A balance or a hold is not that of the log's legs.
    Postings(String),
    /// Operations without a transfer.
    NoTransfer,
    /// The operation and its transfer have different bodies.
    OtherBody {
        /// The operation, on Spot.
        op: Op,
    },
    /// The watermark has passed a transfer that is not terminal.
    Passed {
        /// Its state.
        state: State,
    },
    /// The state and the operations do not fit, see [`super::fit`].
    Misfit {
        /// The state.
        state: State,
        /// The operation.
        op: Op,
    },
    /// The totals below the watermark differ.
    SettledTotals {
        /// By the terminal states in PostgreSQL.
        claimed: Totals,
        /// By UBSCore.
        done: Totals,
    },
    /// An external operation has a record and no row.
    ExternalLost {
        /// EXT_DEPOSIT or EXT_WITHDRAW.
        op: Op,
        /// Its name, while the log has its record.
        idem_key: Option<String>,
        /// Its amount.
        units: u64,
        /// Its record.
        sequence: Sequence,
    },
    /// The row and the record of an external operation differ.
    ExternalDiffers {
        /// EXT_DEPOSIT or EXT_WITHDRAW.
        op: Op,
        /// Its name.
        idem_key: String,
    },
    /// A posting by name and the transaction in PostgreSQL do not fit.
    Transaction {
        /// The transaction.
        transaction: ReqId,
        /// The operation of the record.
        op: Op,
        /// The record.
        sequence: Sequence,
        /// The state of it in PostgreSQL, for people.
        there: String,
    },
    /// A transaction's row claims a decision of UBSCore that has no record.
    TransactionLost {
        /// The transaction.
        transaction: ReqId,
        /// RESERVE, SETTLE or RELEASE.
        op: Op,
        /// The round.
        round: u8,
        /// The claim of the row, for people.
        claim: String,
    },
    /// Transactions have made or lost money of an asset: both stores together have other sums than
    /// the money from outside.
    TransactionSums {
        /// The asset's number.
        asset: AssetId,
        /// Smallest units, not 0.
        made: i128,
    },
    /// The sums of external operations below the watermark differ.
    ExternalSums {
        /// In PostgreSQL.
        rows: Outside,
        /// In the log.
        records: Outside,
    },
}

impl Mismatch {
    /// A finding about no user. Every `with_` adds a part to it.
    pub(super) fn new(kind: Kind) -> Mismatch {
        let (user, asset, req_id, external) = (None, None, None, None);
        let (difference, precision) = (Difference::Unknown, 0);
        Mismatch { user, asset, req_id, external, kind, difference, precision }
    }

    /// PostgreSQL counts from an incarnation that others have followed.
    pub fn older_database(latest: u64, known: u64) -> Mismatch {
        assert!(latest > known, "incarnation {latest} is not after {known}");
        Mismatch::new(Kind::OlderDatabase { latest, known })
    }

    /// Transactions have made money of an asset, or lost it: smallest units, not 0.
    pub(super) fn transaction_sums(asset: AssetId, made: i128) -> Mismatch {
        Mismatch::new(Kind::TransactionSums { asset, made })
    }

    /// The account. `units`: smallest units that the user has too much; negative if some are
    /// missing.
    pub(super) fn with_account(
        self,
        user: Option<UserId>,
        asset: AssetId,
        units: i128,
        catalog: &Catalog,
    ) -> Mismatch {
        let (asset, precision) = (Some(asset), catalog.precision(asset));
        Mismatch { user, asset, precision, difference: Difference::Units(units), ..self }
    }

    /// Smallest units of an unknown asset.
    pub(super) fn with_units(self, units: i128) -> Mismatch {
        Mismatch { difference: Difference::Units(units), ..self }
    }

    /// The transfer.
    pub(super) fn with_transfer(self, req_id: ReqId) -> Mismatch {
        Mismatch { req_id: Some(req_id), ..self }
    }

    /// The order number of the external operation.
    pub(super) fn with_external(self, order_number: u64) -> Mismatch {
        Mismatch { external: Some(order_number), ..self }
    }

    /// The money that the user has too much, decimal text; negative if some is missing, and
    /// `unknown` if no amount is known.
    pub fn difference(&self) -> String {
        match &self.difference {
            Difference::Unknown => "unknown".to_owned(),
            Difference::Units(units) => signed_text(*units, self.precision),
            Difference::Decimal(text) => text.clone(),
        }
    }

    /// A sentence about the kind, without user, asset and transfer.
    pub fn what(&self) -> String {
        let units = |units: u128| units_text(units, self.precision);
        match &self.kind {
            Kind::OlderDatabase { latest, known } => format!(
                "the log has incarnation {latest}, PostgreSQL only {known}: PostgreSQL is behind, \
                 and has lost the external operations since"
            ),
            Kind::LogBehind { durable, read } => format!(
                "the log ends at record {durable}, but PostgreSQL has been compared with it up to \
                 {read}: the log is behind"
            ),
            Kind::DatabaseBehind { read, missing } => format!(
                "PostgreSQL has been compared with the log only up to record {read}, and the next \
                 record is gone: PostgreSQL is behind ({missing})"
            ),
            Kind::WentBack { read, back_at } => format!(
                "PostgreSQL had been compared with the log up to record {read}, and now only up to \
                 {back_at}: it has gone back"
            ),
            Kind::LostCommits(lacks) => {
                format!("PostgreSQL lacks commits that it had answered: {lacks}")
            }
            Kind::DamagedLog(why) | Kind::StrangeRow(why) | Kind::Postings(why) => why.clone(),
            Kind::DamagedJournal(damaged) => {
                let DamagedRow { shard, flight, .. } = damaged;
                format!(
                    "{damaged}; next: ubscore journal dump --shard {shard} --from {flight}, and the \
                     runbook, \"The journal is damaged\""
                )
            }
            Kind::Unbalanced(unbalanced) => unbalanced.sentence(),
            Kind::Misheld(misheld) => misheld.sentence(),
            Kind::UnreadableRow(why) => format!("a row cannot be read: {why}"),
            Kind::NoTransfer => {
                "there are operations, but PostgreSQL has no such transfer".to_owned()
            }
            Kind::OtherBody { op } => {
                format!("its {} on Spot has another user, asset or amount", op.name())
            }
            Kind::Passed { state } => {
                format!("its state is {}, but the watermark has passed it", state.name())
            }
            Kind::Misfit { state, op } => {
                format!("its state {} does not fit the record of its {}", state.name(), op.name())
            }
            Kind::SettledTotals { claimed, done } => {
                let text = |totals: &Totals| {
                    Op::OF_TRANSFER
                        .map(|op| format!("{} {}", op.name(), units(totals.of(op))))
                        .join(", ")
                };
                let (claimed, done) = (text(claimed), text(done));
                format!(
                    "below the watermark transfers claim {claimed} of Spot, and UBSCore has done \
                     {done}"
                )
            }
            Kind::ExternalLost { op, idem_key, units: amount, sequence } => {
                let name = idem_key.as_deref().unwrap_or("of an unknown idem_key");
                let (op, amount) = (op.name(), units((*amount).into()));
                format!(
                    "{op} {name} of {amount} was answered and is record {sequence} of the log, but \
                     PostgreSQL has lost it"
                )
            }
            Kind::ExternalDiffers { op, idem_key } => format!(
                "{} {idem_key} is recorded in the log with another order number, user, asset, \
                 amount or decision",
                op.name()
            ),
            Kind::Transaction { transaction, op, sequence, there } => format!(
                "transaction {transaction}: its {} is record {sequence} of the log, but PostgreSQL \
                 {there}",
                op.name()
            ),
            Kind::TransactionLost { transaction, op, round, claim } => format!(
                "transaction {transaction}: PostgreSQL {claim} in round {round}, but the log has no \
                 {} of it",
                op.name()
            ),
            Kind::TransactionSums { asset, made } => sums_of_transactions(*asset, *made),
            Kind::ExternalSums { rows, records } => {
                let text = |outside: &Outside| {
                    let Outside { deposits, deposited, withdrawals, withdrawn } = outside;
                    let [deposited, withdrawn] = [*deposited, *withdrawn].map(units);
                    format!(
                        "{deposits} EXT_DEPOSIT ({deposited}) and {withdrawals} EXT_WITHDRAW \
                         ({withdrawn})"
                    )
                };
                let (rows, records) = (text(rows), text(records));
                format!(
                    "external operations below the watermark: PostgreSQL has {rows}, the log has \
                     recorded {records}"
                )
            }
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { user, asset, req_id, .. } = self;
        let subject = [
            user.map(|user| format!("user {user}")),
            asset.map(|asset| format!("asset {}", asset.0)),
            req_id.map(|req_id| format!("transfer {req_id}")),
        ];
        let subject: Vec<String> = subject.into_iter().flatten().collect();
        let colon = if subject.is_empty() { "" } else { ": " };
        write!(out, "{}{colon}{}", subject.join(", "), self.what())?;
        match (&self.difference, &self.kind) {
            // The sentence of an account names the difference itself.
            (Difference::Unknown | Difference::Units(0), _)
            | (_, Kind::Unbalanced(_) | Kind::Misheld(_)) => Ok(()),
            _ => write!(out, "; difference {}", self.difference()),
        }
    }
}

impl From<Unbalanced> for Mismatch {
    fn from(unbalanced: Unbalanced) -> Mismatch {
        let (user, asset) = (Some(unbalanced.user), Some(unbalanced.asset));
        let difference = Difference::Decimal(unbalanced.difference.clone());
        let kind = Kind::Unbalanced(unbalanced);
        Mismatch { user, asset, difference, ..Mismatch::new(kind) }
    }
}

impl From<Misheld> for Mismatch {
    fn from(misheld: Misheld) -> Mismatch {
        let (user, asset) = (Some(misheld.user), Some(misheld.asset));
        let difference = Difference::Decimal(misheld.difference.clone());
        Mismatch { user, asset, difference, ..Mismatch::new(Kind::Misheld(misheld)) }
    }
}

fn sums_of_transactions(asset: AssetId, made: i128) -> String {
    format!(
        "asset {}: transactions have brought {made} smallest units more to both stores than they \
         have taken",
        asset.0
    )
}

#[cfg(test)]
mod tests {
    use domain::amount::Amount;
    use domain::asset::{Asset, AssetStatus};

    use super::*;

    const USDT: AssetId = AssetId(3);

    fn catalog() -> Catalog {
        let amount = |units| Amount::new(units).expect("not zero");
        Catalog::new([Asset {
            id: USDT,
            symbol: "USDT".to_owned(),
            precision: 2,
            status: AssetStatus::Active,
            transfer_enabled: true,
            transfer_min: amount(1),
            transfer_max: amount(2),
        }])
    }

    /// Goal: a line names its subject, and the difference once. Method: a finding with all of them,
    /// one that has the difference in its sentence, one without an amount, and one of an asset that
    /// the catalog does not have.
    #[test]
    fn a_line_names_its_subject_and_its_difference_once() {
        let (user, req_id) = (UserId::new(7), ReqId::new(9).expect("not zero"));
        let misfit = Mismatch::new(Kind::Misfit { state: State::Committed, op: Op::Deposit })
            .with_account(user, USDT, -150, &catalog())
            .with_transfer(req_id);
        let want = format!(
            "user 7, asset 3, transfer {req_id}: its state COMMITTED does not fit the record of \
             its DEPOSIT; difference -1.5"
        );
        assert_eq!(misfit.to_string(), want);
        assert_eq!(misfit.difference(), "-1.5");
        let sum = Unbalanced {
            user: user.expect("in range"),
            asset: USDT,
            difference: "5".to_owned(),
            what: "Funding is {} than its operations",
        };
        let sum = Mismatch::from(sum);
        assert_eq!(sum.to_string(), "user 7, asset 3: Funding is 5 more than its operations");
        assert_eq!(sum.difference(), "5");
        let hold = Some("01K:7:3".to_owned());
        let difference = "-5".to_owned();
        let frozen = Misheld { user: user.expect("in range"), asset: USDT, difference, hold };
        assert_eq!(
            Mismatch::from(frozen).to_string(),
            "user 7, asset 3: 5 less is frozen on Funding than its freezes and open holds; the \
             oldest hold is 01K:7:3"
        );
        let back = Mismatch::new(Kind::LogBehind { durable: 3, read: 5 });
        assert!(back.to_string().starts_with("the log ends at record 3, "), "{back}");
        assert_eq!(back.difference(), "unknown");
        let unknown = Mismatch::new(Kind::NoTransfer).with_account(None, AssetId(8), 4, &catalog());
        assert!(unknown.to_string().ends_with("; difference 4"), "{unknown}");
    }
}
