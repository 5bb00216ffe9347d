//! Alerts: findings that an operator must check, as a log event, a metric and a webhook if one is
//! configured.
//!
//! Raising an alert never waits: [`webhook`] sends from a thread of its own. The same alert about
//! the same subject is reported once in `alert.repeat_ms` and counted every time.

pub mod webhook;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::field::display;
use tracing::{error, warn};

use self::webhook::{Message, Webhook};
use crate::clock::Clock;
use crate::config::Config;
use crate::telemetry;

/// All alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alert {
    /// A row of `assets_tb` cannot be read, or contradicts UBSCore's record of the asset.
    AssetUnreadable,
    /// Another session changes Funding accounts, balances or transfers while the service works with
    /// them.
    BalanceChangedOutside,
    /// The bill of a channel's day does not come, or is damaged.
    BillLate,
    /// A bill of a channel and the rows here differ, and a person must look.
    BillMismatch,
    /// A payment channel does not answer.
    ChannelAway,
    /// The last key of a payment channel ends soon.
    ChannelKeyExpiring,
    /// Transfers carry times in PostgreSQL's future: the service's clock ran ahead.
    ClockAhead,
    /// The refund of a transfer keeps an unknown outcome.
    CompensationFailing,
    /// The audit could not complete a round for some time.
    ConservationStalled,
    /// The audit found that money was made or lost.
    ConservationViolated,
    /// Another process has taken over.
    Fenced,
    /// Other sessions of PostgreSQL stop every commit of a worker, for example by a lock on a
    /// table.
    FundingBlocked,
    /// A hold of a venue is old.
    HoldStuck,
    /// A row of Funding's journal cannot be read, or rows are missing.
    JournalDamaged,
    /// Half of `journal.bytes_max` is taken.
    JournalFilling,
    /// New transfers are refused because a resource is full.
    NotTakingTransfers,
    /// A session, prepared transaction or replication slot of PostgreSQL holds back vacuum.
    OldSnapshot,
    /// So many transfers are parked, because other sessions hold their rows, or have been open for
    /// so long, that new ones are refused.
    ParkedFull,
    /// A service does not answer the confirms or cancels of decided transactions.
    ParticipantFailing,
    /// The table of Spot accounts or of balances is nearly full.
    PlacesLow,
    /// PostgreSQL is another server, or has an older state. No money moves until both stores are
    /// compared.
    PostgresChanged,
    /// PostgreSQL does not answer.
    PostgresUnreachable,
    /// An operation was repeated with another body, or refunded without a withdrawal.
    ProtocolViolation,
    /// A user owes money that a channel has taken.
    ReceivableOpened,
    /// The money of a promotion does not suffice for one more of its largest bonuses.
    PromotionLow,
    /// A payment came again with other facts.
    RechargeContradiction,
    /// A payment of an order is held for an operator.
    RechargeHeld,
    /// A return, or the close of an order behind its end of payment, does not end.
    RechargeStuck,
    /// A payment that bears our mark has no order here.
    RechargeUnmatched,
    /// A SETTLE or RELEASE of a venue was refused.
    SettleRefused,
    /// A snapshot cannot be made, or the segments before it cannot be removed. The log and the time
    /// of a restart grow.
    SnapshotFailed,
    /// The log or a snapshot disagrees with UBSCore. The next start would refuse.
    SnapshotMismatch,
    /// A special account is below zero.
    SpecialNegative,
    /// A transaction does not reach a final state.
    TransactionStuck,
    /// A transfer does not reach a final state.
    TransferStuck,
    /// A user sends abnormally many transfers.
    UserFrequencyAbnormal,
    /// A venue has answers that the log does not hold: the log was restored to an earlier point.
    VenueAheadOfLog,
    /// A venue does not acknowledge its answers: nothing more of it is decided.
    VenueBehind,
    /// The log's disk failed.
    WalSyncFailed,
    /// No segment could be prepared ahead.
    WalSpaceLow,
}

impl Alert {
    /// Every alert.
    pub const ALL: [Alert; 40] = [
        Alert::AssetUnreadable,
        Alert::BalanceChangedOutside,
        Alert::BillLate,
        Alert::BillMismatch,
        Alert::ChannelAway,
        Alert::ChannelKeyExpiring,
        Alert::ClockAhead,
        Alert::CompensationFailing,
        Alert::ConservationStalled,
        Alert::ConservationViolated,
        Alert::Fenced,
        Alert::FundingBlocked,
        Alert::HoldStuck,
        Alert::JournalDamaged,
        Alert::JournalFilling,
        Alert::NotTakingTransfers,
        Alert::OldSnapshot,
        Alert::ParkedFull,
        Alert::ParticipantFailing,
        Alert::PlacesLow,
        Alert::PostgresChanged,
        Alert::PostgresUnreachable,
        Alert::PromotionLow,
        Alert::ProtocolViolation,
        Alert::ReceivableOpened,
        Alert::RechargeContradiction,
        Alert::RechargeHeld,
        Alert::RechargeStuck,
        Alert::RechargeUnmatched,
        Alert::SettleRefused,
        Alert::SnapshotFailed,
        Alert::SnapshotMismatch,
        Alert::SpecialNegative,
        Alert::TransactionStuck,
        Alert::TransferStuck,
        Alert::UserFrequencyAbnormal,
        Alert::VenueAheadOfLog,
        Alert::VenueBehind,
        Alert::WalSyncFailed,
        Alert::WalSpaceLow,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Alert::AssetUnreadable => "asset_unreadable",
            Alert::BalanceChangedOutside => "balance_changed_outside",
            Alert::BillLate => "bill_late",
            Alert::BillMismatch => "bill_mismatch",
            Alert::ChannelAway => "channel_away",
            Alert::ChannelKeyExpiring => "channel_key_expiring",
            Alert::ClockAhead => "clock_ahead",
            Alert::CompensationFailing => "compensation_failing",
            Alert::ConservationStalled => "conservation_stalled",
            Alert::ConservationViolated => "conservation_violated",
            Alert::Fenced => "fenced",
            Alert::FundingBlocked => "funding_blocked",
            Alert::HoldStuck => "hold_stuck",
            Alert::JournalDamaged => "journal_damaged",
            Alert::JournalFilling => "journal_filling",
            Alert::NotTakingTransfers => "not_taking_transfers",
            Alert::OldSnapshot => "old_snapshot",
            Alert::ParkedFull => "parked_full",
            Alert::ParticipantFailing => "participant_failing",
            Alert::PlacesLow => "places_low",
            Alert::PostgresChanged => "postgres_changed",
            Alert::PostgresUnreachable => "postgres_unreachable",
            Alert::PromotionLow => "promotion_low",
            Alert::ProtocolViolation => "protocol_violation",
            Alert::ReceivableOpened => "receivable_opened",
            Alert::RechargeContradiction => "recharge_contradiction",
            Alert::RechargeHeld => "recharge_held",
            Alert::RechargeStuck => "recharge_stuck",
            Alert::RechargeUnmatched => "recharge_unmatched",
            Alert::SettleRefused => "settle_refused",
            Alert::SnapshotFailed => "snapshot_failed",
            Alert::SnapshotMismatch => "snapshot_mismatch",
            Alert::SpecialNegative => "special_negative",
            Alert::TransactionStuck => "transaction_stuck",
            Alert::TransferStuck => "transfer_stuck",
            Alert::UserFrequencyAbnormal => "user_frequency_abnormal",
            Alert::VenueAheadOfLog => "venue_ahead_of_log",
            Alert::VenueBehind => "venue_behind",
            Alert::WalSyncFailed => "wal_sync_failed",
            Alert::WalSpaceLow => "wal_space_low",
        }
    }

    /// Its severity: CRITICAL must wake an operator.
    pub fn severity(self) -> &'static str {
        match self {
            Alert::AssetUnreadable
            | Alert::BillMismatch
            | Alert::CompensationFailing
            | Alert::ConservationStalled
            | Alert::ConservationViolated
            | Alert::Fenced
            | Alert::JournalDamaged
            | Alert::NotTakingTransfers
            | Alert::ParticipantFailing
            | Alert::PostgresChanged
            | Alert::ProtocolViolation
            | Alert::RechargeContradiction
            | Alert::RechargeStuck
            | Alert::RechargeUnmatched
            | Alert::SettleRefused
            | Alert::SnapshotMismatch
            | Alert::TransactionStuck
            | Alert::TransferStuck
            | Alert::FundingBlocked
            | Alert::BalanceChangedOutside
            | Alert::ParkedFull
            | Alert::VenueAheadOfLog
            | Alert::WalSyncFailed => CRITICAL,
            Alert::BillLate
            | Alert::ChannelAway
            | Alert::ChannelKeyExpiring
            | Alert::ClockAhead
            | Alert::HoldStuck
            | Alert::JournalFilling
            | Alert::PlacesLow
            | Alert::PostgresUnreachable
            | Alert::ReceivableOpened
            | Alert::PromotionLow
            | Alert::RechargeHeld
            | Alert::SnapshotFailed
            | Alert::SpecialNegative
            | Alert::UserFrequencyAbnormal
            | Alert::VenueBehind
            | Alert::OldSnapshot
            | Alert::WalSpaceLow => WARNING,
        }
    }
}

impl Alert {
    /// The operator's next step, appended to every alert. Its chapter is one of `docs/runbook.md`.
    pub fn next(self) -> &'static str {
        match self {
            Alert::CompensationFailing | Alert::TransferStuck => {
                "ubscore transfer list --stuck; runbook, \"A transfer does not arrive\""
            }
            Alert::TransactionStuck | Alert::ParticipantFailing => {
                "ubscore transaction list --stuck; runbook, \"A transaction does not end\""
            }
            Alert::ConservationViolated | Alert::ProtocolViolation | Alert::SnapshotMismatch => {
                "ubscore verify; runbook, \"It has halted\""
            }
            Alert::ConservationStalled | Alert::PostgresUnreachable => {
                "ubscore doctor; runbook, \"PostgreSQL is away\""
            }
            Alert::AssetUnreadable => "ubscore doctor; runbook, \"An asset cannot be read\"",
            Alert::ClockAhead => "ubscore doctor; runbook, \"The clock ran ahead\"",
            Alert::BalanceChangedOutside
            | Alert::FundingBlocked
            | Alert::ParkedFull
            | Alert::OldSnapshot => "ubscore doctor; runbook, \"Another session is in the way\"",
            Alert::PlacesLow => "raise its bound in [engine]; runbook, \"The tables fill\"",
            Alert::JournalDamaged => "ubscore journal dump; runbook, \"The journal is damaged\"",
            Alert::JournalFilling => "GET /metrics; runbook, \"The journal fills\"",
            Alert::HoldStuck | Alert::SettleRefused => {
                "ubscore hold list --venue ID; runbook, \"A venue holds money\""
            }
            Alert::SpecialNegative => {
                "ubscore account specials; runbook, \"A special account is below zero\""
            }
            Alert::RechargeHeld | Alert::RechargeUnmatched => {
                "ubscore recharge list --held; runbook, \"A payment is held\""
            }
            Alert::ReceivableOpened => {
                "ubscore recharge receivables --open; runbook, \"A user owes taken money\""
            }
            Alert::RechargeContradiction => {
                "ubscore recharge list --trade-no NUMBER; runbook, \"A payment contradicts its record\""
            }
            Alert::PromotionLow => "ubscore promotion list; runbook, \"A promotion runs out\"",
            Alert::RechargeStuck => {
                "ubscore recharge list --overdue; runbook, \"A recharge does not end\""
            }
            Alert::BillLate => "ubscore channel bills; runbook, \"A bill does not come\"",
            Alert::BillMismatch => "ubscore recharge findings; runbook, \"A bill differs\"",
            Alert::ChannelAway => "ubscore channel list; runbook, \"A channel is away\"",
            Alert::ChannelKeyExpiring => {
                "ubscore channel list; runbook, \"The key of a channel ends\""
            }
            Alert::VenueBehind => "ubscore venue list; runbook, \"A venue is behind\"",
            Alert::VenueAheadOfLog => "ubscore wal stat DATA_DIR; runbook, \"It has halted\"",
            Alert::Fenced => "runbook, \"The process has ended\"",
            Alert::PostgresChanged => "ubscore verify; runbook, \"After a failover\"",
            Alert::WalSyncFailed => {
                "ubscore wal verify DATA_DIR; runbook, \"The process has ended\""
            }
            Alert::NotTakingTransfers => "GET /readyz; runbook, \"No new transfers\"",
            Alert::SnapshotFailed | Alert::WalSpaceLow => {
                "ubscore doctor; runbook, \"The disk fills\""
            }
            Alert::UserFrequencyAbnormal => {
                "ubscore statement --user ID; runbook, \"What happened to a user's money\""
            }
        }
    }
}

const CRITICAL: &str = "CRITICAL";
const WARNING: &str = "WARNING";

/// The most subjects that are remembered for [`Options::repeat`]. Above it all new subjects of one
/// alert share one place: some are reported less often, but all are counted.
const SUBJECTS_MAX: usize = 4_096;

/// How alerts are reported; see `[alert]` in the configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The same alert about the same subject is reported again after this.
    pub repeat: Duration,
    /// The webhook, if one is configured.
    pub webhook: Option<webhook::Options>,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        let timeout = Duration::from_millis(config.alert.webhook_timeout_ms);
        let webhook = config.alert.webhook_url.clone();
        Options {
            repeat: Duration::from_millis(config.alert.repeat_ms),
            webhook: webhook.map(|url| webhook::Options { url, timeout }),
        }
    }
}

/// The outputs of alerts in this process, beside the metric.
struct Outlet {
    clock: Arc<dyn Clock>,
    said: Mutex<Said>,
    webhook: Option<Webhook>,
}

static OUTLET: OnceLock<Outlet> = OnceLock::new();

/// Reports alerts by `options` from now on. Before this call each alert is logged and counted. Only
/// the first call of a process counts.
///
/// # Errors
/// The system cannot start the thread of the webhook.
pub fn start(options: &Options, clock: Arc<dyn Clock>) -> std::io::Result<()> {
    for alert in Alert::ALL {
        telemetry::expect_alert(alert.name());
    }
    let webhook = options.webhook.as_ref().map(Webhook::start).transpose()?;
    let repeat_ns = u64::try_from(options.repeat.as_nanos()).unwrap_or(u64::MAX);
    let said = Mutex::new(Said::new(repeat_ns, SUBJECTS_MAX));
    OUTLET.get_or_init(|| Outlet { clock, said, webhook });
    Ok(())
}

/// Raises an alert about the whole process.
pub fn alert(alert: Alert, what: fmt::Arguments<'_>) {
    alert_about(alert, &"", what);
}

/// Raises an alert. `subject`: such as a transfer; an alert repeats if its subject is the same.
pub fn alert_about(alert: Alert, subject: &dyn fmt::Display, what: fmt::Arguments<'_>) {
    metrics::counter!(telemetry::ALERTS_TOTAL, "alert" => alert.name()).increment(1);
    let (name, severity) = (alert.name(), alert.severity());
    let (subject, what) = (subject.to_string(), format!("{what}; next: {}", alert.next()));
    let about = (!subject.is_empty()).then(|| display(subject.clone()));
    let unsaid = match OUTLET.get() {
        None => Some(0),
        Some(outlet) => {
            let now_ns = outlet.clock.monotonic_ns();
            let mut said = outlet.said.lock();
            let unsaid = said.again(alert, subject, now_ns);
            // Sent under the same lock, so that a later flush waits for this alert.
            if let (Some(webhook), Some(_)) = (&outlet.webhook, unsaid) {
                let (message, at_ns) = (what.clone(), outlet.clock.now_ns());
                webhook.send(Message { alert: name, severity, message, at_ns });
            }
            unsaid
        }
    };
    let Some(unsaid) = unsaid else { return };
    if severity == CRITICAL {
        error!(alert = name, severity = CRITICAL, subject = about, unsaid, "{what}");
    } else {
        warn!(alert = name, severity = WARNING, subject = about, unsaid, "{what}");
    }
}

/// Waits at most `limit` until the webhook has all alerts. Called before the process ends.
pub fn flush(limit: Duration) {
    if let Some(webhook) = OUTLET.get().and_then(|outlet| outlet.webhook.as_ref()) {
        webhook.flush(limit);
    }
}

/// The alerts that were reported lately.
struct Said {
    repeat_ns: u64,
    subjects_max: usize,
    /// Time of the last report, monotonic ns, and the number of unreported repetitions since.
    last: HashMap<(Alert, String), (u64, u64)>,
}

impl Said {
    fn new(repeat_ns: u64, subjects_max: usize) -> Said {
        Said { repeat_ns, subjects_max, last: HashMap::new() }
    }

    /// Whether to report now: the number of unreported repetitions since the last report, or `None`
    /// if it is too early.
    fn again(&mut self, alert: Alert, subject: String, now_ns: u64) -> Option<u64> {
        let repeat_ns = self.repeat_ns;
        let recent = |last_ns: u64| now_ns.saturating_sub(last_ns) < repeat_ns;
        let mut key = (alert, subject);
        if self.last.len() >= self.subjects_max && !self.last.contains_key(&key) {
            self.last.retain(|_, (last_ns, _)| recent(*last_ns));
            if self.last.len() >= self.subjects_max {
                key.1 = String::new();
            }
        }
        match self.last.get_mut(&key) {
            Some((last_ns, unsaid)) if recent(*last_ns) => {
                *unsaid += 1;
                None
            }
            Some((last_ns, unsaid)) => {
                *last_ns = now_ns;
                Some(std::mem::take(unsaid))
            }
            None => {
                self.last.insert(key, (now_ns, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_about_the_same_is_said_once_in_a_while_and_what_was_not_is_counted() {
        let mut said = Said::new(100, 8);
        let mut again = |alert, subject: &str, now| said.again(alert, subject.to_owned(), now);
        assert_eq!(again(Alert::TransferStuck, "a", 1_000), Some(0));
        assert_eq!(again(Alert::TransferStuck, "a", 1_001), None);
        assert_eq!(again(Alert::TransferStuck, "a", 1_099), None);
        assert_eq!(again(Alert::TransferStuck, "b", 1_099), Some(0), "another subject");
        assert_eq!(again(Alert::Fenced, "a", 1_099), Some(0), "another alert");
        assert_eq!(again(Alert::TransferStuck, "a", 1_100), Some(2));
        assert_eq!(again(Alert::TransferStuck, "a", 1_101), None);
    }

    /// Subjects without a place share one, so each alert adds at most one place above the bound.
    #[test]
    fn a_flood_of_subjects_is_bounded_and_old_ones_make_room() {
        let mut said = Said::new(100, 2);
        let mut heard = 0;
        for subject in 0..50 {
            let again = said.again(Alert::TransferStuck, subject.to_string(), 1_000);
            heard += usize::from(again.is_some());
        }
        assert_eq!(heard, 3, "two by their own names and one for the others");
        assert_eq!(said.last.len(), 3);
        assert_eq!(said.again(Alert::TransferStuck, "new".to_owned(), 1_100), Some(0));
        assert_eq!(said.last.len(), 1);
    }
}
