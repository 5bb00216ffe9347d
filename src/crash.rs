//! Named points at which a test may kill this process, and faults of its disk. Without the feature
//! `crash` they do nothing.
//!
//! A point is armed from the environment: `UBSCORE_CRASH=point` or `UBSCORE_CRASH=point=3` raises
//! SIGKILL at the first or the third visit. `UBSCORE_CRASH=point=panic` panics there instead, at
//! every visit. `UBSCORE_CRASH=point=stop` raises SIGSTOP at the first one. `UBSCORE_FAULT` holds
//! faults in the format of `wal::fault`. `UBSCORE_FAULT_WHILE` may name a file; then the faults
//! occur only while it exists.

/// The points of a transfer, in their order.
pub const POINTS: &[&str] = &[
    "coordinator_before_commit",
    "coordinator_after_commit",
    "coordinator_before_ask",
    "coordinator_after_ask",
    "engine_before_append",
    "engine_before_sync",
    "engine_after_sync",
];

/// The points of a snapshot, in their order.
pub const SNAPSHOT_POINTS: &[&str] = &[
    "snapshot_before_rename",
    "snapshot_after_rename",
    "snapshot_after_remove",
    "snapshot_after_segments",
];

/// The points of raising the watermark, in their order. A transfer does not reach them.
pub const WATERMARK_POINTS: &[&str] =
    &["watermark_before_postgres", "watermark_after_postgres", "watermark_after_log"];

/// The points of a cut of the log, in their order.
pub const CUT_POINTS: &[&str] =
    &["cut_after_copies", "cut_after_log", "cut_after_snapshots", "cut_after_postgres"];

/// The points of a repair by which UBSCore decides again, in their order.
pub const REPAIR_POINTS: &[&str] =
    &["repair_after_fence", "repair_before_step", "repair_after_steps", "repair_after_postgres"];

/// The points of a repair of PostgreSQL's rows, in their order.
pub const ROWS_POINTS: &[&str] = &[
    "repair_before_rows",
    "repair_amid_rows",
    "repair_after_rows",
    "repair_before_flights",
    "repair_after_flights",
];

/// The points of rebuilding a lost log from PostgreSQL, in their order.
pub const ADOPT_POINTS: &[&str] = &[
    "adopt_before_aside",
    "adopt_after_aside",
    "adopt_after_postgres",
    "adopt_after_carried",
    "adopt_after_steps",
    "adopt_after_renumbering",
];

/// The points of a backup and of a restore, in their order. The service does not reach them.
pub const BACKUP_POINTS: &[&str] = &[
    "backup_after_log",
    "backup_after_dump",
    "backup_before_rename",
    "restore_after_mark",
    "restore_after_postgres",
    "restore_after_settle",
    "restore_after_snapshots",
    "restore_after_log",
    "restore_after_incarnation",
];

/// The points of an approved action, in their order.
pub const APPROVAL_POINTS: &[&str] = &["approval_after_approve", "approval_after_action"];

/// The points between an external operation's commit and its answer, in their order. A transfer
/// does not reach them.
pub const EXTERNAL_POINTS: &[&str] = &["external_before_record", "external_after_record"];

/// The points between a flight's commit and its streams; the second one if it has a recharge.
pub const EVENT_POINTS: &[&str] = &["events_before_told"];

/// The points of a transaction, in their order. A transfer does not reach them.
pub const TRANSACTION_POINTS: &[&str] = &[
    "transaction_before_accept",
    "transaction_after_accept",
    "transaction_before_ask",
    "transaction_after_ask",
    "transaction_before_record",
    "transaction_after_record",
    "transaction_after_tried",
    "transaction_after_deciding",
    "transaction_after_committed",
    "transaction_after_seal",
    "transaction_after_aborted",
    "transaction_after_stores",
    "transaction_after_final",
];

/// The points of a recharge, in their order. A transfer does not reach them.
pub const RECHARGE_POINTS: &[&str] = &[
    "recharge_after_create",
    "recharge_after_ask",
    "callback_before_commit",
    "callback_after_commit",
    "recharge_before_tell",
    "follow_after_submit",
    "close_after_wish",
    "close_after_there",
    "return_after_hold",
    "return_after_send",
    "return_after_there",
];

/// The points of a channel's bill, in their order. An order does not reach them.
pub const BILL_POINTS: &[&str] = &["bill_after_fetch", "bill_after_apply"];
/// The points of a bonus, in their order. An order without a promotion does not reach them.
pub const PROMOTION_POINTS: &[&str] = &["promotion_after_reserve", "promotion_after_return"];
/// The points of `ubscore recharge recover`, in their order.
pub const RECOVER_POINTS: &[&str] =
    &["recover_after_order", "recover_after_payment", "recover_before_end"];

/// The points of a node of the transaction manager, in their order. The service does not reach
/// them.
pub const TXM_POINTS: &[&str] = &[
    "lease_after_acquire",
    "txm_after_create",
    "txm_after_sign",
    "txm_after_store",
    "txm_after_send",
    "txm_after_answer",
    "txm_after_receipt",
    "txm_before_final",
    "txm_before_resend",
    "txm_after_bump",
];

/// Every list of points.
pub const ALL_POINTS: [&[&str]; 17] = [
    POINTS,
    SNAPSHOT_POINTS,
    WATERMARK_POINTS,
    CUT_POINTS,
    REPAIR_POINTS,
    ROWS_POINTS,
    ADOPT_POINTS,
    BACKUP_POINTS,
    APPROVAL_POINTS,
    EXTERNAL_POINTS,
    EVENT_POINTS,
    TRANSACTION_POINTS,
    RECHARGE_POINTS,
    BILL_POINTS,
    PROMOTION_POINTS,
    RECOVER_POINTS,
    TXM_POINTS,
];

/// Whether a point has this name.
#[cfg(feature = "crash")]
fn is_point(name: &str) -> bool {
    ALL_POINTS.iter().any(|points| points.contains(&name))
}

/// A variable of the environment that this module cannot use.
#[cfg(feature = "crash")]
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct Unarmed {
    variable: &'static str,
    why: String,
}

#[cfg(feature = "crash")]
impl Unarmed {
    fn because(variable: &'static str, why: impl std::fmt::Display) -> Unarmed {
        Unarmed { variable, why: why.to_string() }
    }
}

/// Arms the point that the environment names.
///
/// # Errors
/// [`Unarmed`]: the environment names no point, or a fault that does not exist.
#[cfg(feature = "crash")]
pub fn arm() -> Result<(), Unarmed> {
    use std::sync::atomic::{AtomicU32, Ordering};

    shadow()?;
    if let Ok(faults) = std::env::var("UBSCORE_FAULT") {
        let while_there = std::env::var_os("UBSCORE_FAULT_WHILE").map(Into::into);
        wal::fault::begin(&faults, while_there)
            .map_err(|why| Unarmed::because("UBSCORE_FAULT", why))?;
    }
    let Ok(armed) = std::env::var("UBSCORE_CRASH") else { return Ok(()) };
    let unarmed = |why| Unarmed::because("UBSCORE_CRASH", why);
    let (name, visit) = armed.split_once('=').unwrap_or((&armed, "1"));
    if !is_point(name) {
        return Err(unarmed(format!("{name} is none of {ALL_POINTS:?}")));
    }
    if visit == "panic" {
        return fail::cfg(name, visit).map_err(unarmed);
    }
    let (visit, signal) = match visit {
        "stop" => ("1", rustix::process::Signal::STOP),
        visit => (visit, rustix::process::Signal::KILL),
    };
    let visit: u32 = visit.parse().map_err(|_| unarmed(format!("{visit} is no number")))?;
    let visits = AtomicU32::new(0);
    fail::cfg_callback(name, move || {
        if visits.fetch_add(1, Ordering::SeqCst) + 1 == visit {
            let us = rustix::process::getpid();
            // Behind SIGKILL no thread runs on.
            rustix::process::kill_process(us, signal).ok();
            // SIGSTOP goes to any thread, and until that one takes it this one would run on, past
            // the point. From then on this one stands still at its next return from the system.
            while is_stop_pending() {
                std::thread::yield_now();
            }
        }
    })
    .map_err(unarmed)
}

/// Whether a SIGSTOP for this process has been sent, and no thread has taken it yet.
#[cfg(feature = "crash")]
fn is_stop_pending() -> bool {
    // The bit of signal 19, counted from 1.
    const STOP: u64 = 1 << 18;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0) & STOP != 0
}

/// Starts to keep the files that a power cut would leave of the log, if the environment has
/// `UBSCORE_SHADOW=directory`. With `UBSCORE_SHADOW_FORGETS=sync` this sync is treated as missing
/// in the code.
#[cfg(feature = "crash")]
fn shadow() -> Result<(), Unarmed> {
    let Ok(directory) = std::env::var("UBSCORE_SHADOW") else { return Ok(()) };
    let forgotten = match std::env::var("UBSCORE_SHADOW_FORGETS") {
        Ok(name) => {
            let sync = wal::shadow::Sync::from_name(&name);
            Some(sync.ok_or_else(|| {
                Unarmed::because("UBSCORE_SHADOW_FORGETS", format!("{name} is no sync"))
            })?)
        }
        Err(_) => None,
    };
    wal::shadow::begin(directory.into(), forgotten);
    Ok(())
}

/// A point.
#[cfg(feature = "crash")]
pub fn point(name: &'static str) {
    debug_assert!(is_point(name), "{name} is not in the list of points");
    fail::fail_point!(name);
}

/// A point.
#[cfg(not(feature = "crash"))]
pub fn point(_name: &'static str) {}
