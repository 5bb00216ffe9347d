//! Faults of the disk under the real process: refused, partial, late or not durable operations.
//! They are injected into the log's medium itself, see `wal::fault`. `make soak` asks for all
//! combinations ([`thorough`]).

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use ubscore::alert::Alert;

use crate::alerts::said_only;
use crate::harness::{
    Planned, Reply, Server, Site, USERS, Way, assert_kept, crowd, endow, eventually, force,
    last_line, plan, plan_of_round, post_to, segments, snapshots, soak_rounds, split_mix, text,
};
use crate::power::Powered;

/// The exit code of a process with a dead log.
const EXIT_ENGINE: i32 = 70;
/// Callers of a load.
const CALLERS: usize = 8;

/// A site with a disk that a test may break and repair while a server runs on it.
struct Disk {
    site: Site,
    broken: PathBuf,
}

impl Disk {
    fn new(site: Site, faults: &str) -> Disk {
        let broken = site.data_dir.with_extension("broken");
        let site = site
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16)
            .with("UBSCORE_FAULT", faults)
            .with("UBSCORE_FAULT_WHILE", broken.display());
        Disk { site, broken }
    }

    fn break_it(&self) {
        fs::write(&self.broken, "").expect("written");
    }

    fn repair(&self) {
        fs::remove_file(&self.broken).expect("removed");
    }
}

/// Whether to combine every fault with every way.
fn thorough() -> bool {
    soak_rounds().is_some()
}

/// How often a fault has occurred.
fn strikes(said: &str) -> usize {
    said.matches("fault: ").count()
}

/// Posts a plan from several callers until `enough` of an answer; a transfer that was not posted
/// has no answer.
fn load(
    server: &Server,
    plan: &[Planned],
    callers: usize,
    enough: impl Fn(&Option<Reply>) -> bool + Sync,
) -> Vec<Option<Reply>> {
    let (http, ended) = (server.http, AtomicUsize::new(0));
    let of_callers = crowd(callers, |caller| {
        let mut answered = Vec::new();
        for (index, planned) in plan.iter().enumerate().skip(caller).step_by(callers) {
            if ended.load(Ordering::Relaxed) > 0 {
                break;
            }
            let reply = post_to(http, planned);
            ended.fetch_add(usize::from(enough(&reply)), Ordering::Relaxed);
            answered.push((index, reply));
        }
        answered
    });
    let mut replies = vec![None; plan.len()];
    for (index, reply) in of_callers.into_iter().flatten() {
        replies[index] = reply;
    }
    replies
}

/// Rest, sums, every answer unchanged, and all of it again.
fn assert_whole(site: &Site, server: &Server, plan: &[Planned], replies: &[Option<Reply>]) {
    site.wait_for_rest();
    site.assert_in_order(server);
    assert_kept(server, plan, replies);
    site.wait_for_rest();
    site.assert_in_order(server);
}

fn is_overloaded(reply: &Option<Reply>) -> bool {
    reply.as_ref().is_some_and(|reply| reply.status == 503 && reply.refusal().1 == "OVERLOADED")
}

/// Asserts that every status of the service shows that it takes no new transfers because the log
/// lacks space.
fn assert_not_ready(server: &Server) {
    let mut number = 0;
    let (refused, ready, session) = eventually("no room for one more", || {
        number += 1;
        let body = Way::ToSpot.body_with_cid("USDT", "1", &format!("one-more-{number}"));
        let refused = server.post(USERS[0], &body);
        if refused.status != 503 {
            return None;
        }
        // A transfer that ends gives room for one more: the three must agree.
        let ready = server.admin_get("/readyz");
        let agree = ready.status == 503 && server.metric("ubscore_ready") == 0;
        let session = server.admin_get("/admin/v1/session").json();
        (agree && !session["not_ready"].is_null()).then_some((refused, ready, session))
    });
    let json = refused.json();
    assert_eq!(json["reason"], json!("log_space"), "{refused:?}");
    assert!(text(&json["message"]).contains("the log's disk is full"), "{refused:?}");
    assert_eq!((ready.status, &ready.json()["reason"]), (503, &json!("log_space")), "{ready:?}");
    assert!(server.metric("ubscore_refused_total{reason=\"log_space\"}") > 0);
    assert!(server.metric("ubscore_alerts_total{alert=\"not_taking_transfers\"}") > 0);
    assert!(text(&session["not_ready"]).contains("disk is full"), "{session}");
}

/// Goal: a full disk refuses new work before the log is full, keeps all promises, and recovers once
/// space returns. Method: no space, or no quota, for the next segment, from the file's first byte
/// or from its middle; a load with cids until a transfer is refused; replays and reads meanwhile; a
/// kill, and a start without space; space again.
#[test]
fn a_full_disk_refuses_new_work_and_passes() {
    /// The fault, and whether a kill comes before the repair.
    const FULL: [(&str, bool); 3] =
        [("fill:enospc", true), ("create:enospc", false), ("fill:edquot", false)];
    let all = if thorough() { FULL.len() } else { 1 };
    for (faults, kills) in FULL.into_iter().take(all) {
        let disk = Disk::new(Site::new(), faults);
        let site = &disk.site;
        let server = site.start();
        endow(site, &server);
        disk.break_it();
        let plan = plan(4_000);
        let replies = load(&server, &plan, CALLERS, is_overloaded);
        assert!(replies.iter().any(is_overloaded), "{faults}: the log did not fill");
        let begun = replies.iter().flatten().filter(|reply| reply.status < 300).count();
        assert!(begun > CALLERS, "{faults}: {begun}");
        said_only(&server.said(), &[Alert::WalSpaceLow, Alert::NotTakingTransfers]);
        site.wait_for_rest();
        assert_not_ready(&server);
        // Replays of recorded transfers are answered.
        for (planned, reply) in
            plan.iter().zip(&replies).filter(|(_, reply)| reply.is_some()).take(CALLERS)
        {
            let again = server.post(planned.user, &planned.body);
            assert_eq!(
                (again.status, again.req_id()),
                (200, reply.as_ref().expect("some").req_id())
            );
        }
        site.assert_in_order(&server);
        let said = server.said();
        assert!(strikes(&said) > 0 && !said.contains("panicked"), "{said}");
        let server = if kills {
            server.kill();
            let (code, said) = site.start_refused();
            assert_eq!(code, 1, "{said}");
            assert!(last_line(&said).contains("No space left"), "{said}");
            disk.repair();
            site.start()
        } else {
            disk.repair();
            server
        };
        eventually("room again", || {
            let reply = server.transfer(USERS[0], Way::ToSpot, "0.00000001");
            (reply.status == 200).then_some(())
        });
        let asked = replies.iter().rposition(Option::is_some).expect("an answer") + 1;
        // The sums cover the rest as well.
        let from = if thorough() { 0 } else { asked.saturating_sub(100) };
        assert_whole(site, &server, &plan[from..asked], &replies[from..asked]);
        server.kill();
        site.assert_in_order(&site.start());
    }
}

/// Faults that end the log and the process, and the callers of the load. UBSCore syncs one caller's
/// orders on its core thread.
const FATAL: &[(&str, usize)] = &[
    ("sync:eio@1", CALLERS),
    ("sync:eio@25", CALLERS),
    ("sync:enospc@7", CALLERS),
    ("wal/rename:eio@1", CALLERS),
    ("wal/sync_directory:eio@1", CALLERS),
    ("create:eio@1", CALLERS),
    ("fill:eio@1", CALLERS),
    ("fill:short@1", CALLERS),
    ("prefault:eio@1", CALLERS),
    ("sync:eio@7", 1),
    ("wal/rename:eio@1", 1),
];

/// Goal: a fatal disk fault ends the process at once, without another sync and without another
/// answer, and every answer given before stays true. Method: each such fault under a load with
/// cids; exit code and last log lines. Then the log as the kernel still has it, or as the disk
/// certainly has it: Linux drops the pages of a failed sync. Restart, rest, sums, every cid again.
/// `wal::fault` aborts a process that syncs again.
#[test]
fn a_disk_that_fails_stops_the_process_and_takes_nothing_back() {
    let mut state = 1;
    for (round, (faults, callers)) in FATAL.iter().enumerate() {
        for cut in
            [false, true].into_iter().filter(|cut| thorough() || *cut == round.is_multiple_of(2))
        {
            let powered = Powered::new(round / 2 % 2 == usize::from(cut));
            let disk = Disk::new(powered.site.clone(), faults);
            let mut server = disk.site.start();
            endow(&disk.site, &server);
            disk.break_it();
            let plan = plan(2_000);
            let replies = load(&server, &plan, *callers, Option::is_none);
            let (status, said) = server.wait();
            assert_eq!(status.code(), Some(EXIT_ENGINE), "{faults}: {status} {said}");
            assert_eq!(strikes(&said), 1, "{faults}: {said}");
            // This is not always the last line: an answer for an earlier durable record may be
            // logged beside it.
            assert!(said.contains("stopped at once"), "{faults}: {said}");
            said_only(&said, &[Alert::WalSyncFailed]);
            disk.repair();
            if cut {
                powered.cut_power(|| split_mix(&mut state));
            }
            let server = disk.site.start();
            let asked = replies.iter().rposition(Option::is_some).map_or(1, |last| last + 1);
            // The last answers are the ones at risk.
            let from = if thorough() { 0 } else { asked.saturating_sub(100) };
            assert_whole(&disk.site, &server, &plan[from..asked], &replies[from..asked]);
        }
    }
}

/// Goal: a start on a failing disk refuses, names the reason, and changes nothing. Method: each
/// step of a start fails on a log that a kill has left; then a start on the repaired disk.
#[test]
fn a_start_on_a_failing_disk_refuses_and_changes_nothing() {
    const STEPS: [&str; 8] = [
        "wal/sync_directory:eio@1",
        "settle:eio",
        "wal/remove:eio",
        "create:eio",
        "fill:short",
        "sync:eio",
        "wal/rename:eio",
        "wal/sync_directory:eio@2",
    ];
    let site = Site::new();
    let server = site.start();
    endow(&site, &server);
    let plan = plan(24);
    let mut replies: Vec<_> = plan.iter().map(|planned| post_to(server.http, planned)).collect();
    let mut server = Some(server);
    for faults in STEPS {
        server.take().expect("one runs").kill();
        let disk = Disk::new(site.clone(), faults);
        disk.break_it();
        let (code, said) = disk.site.start_refused();
        assert!([1, EXIT_ENGINE].contains(&code), "{faults}: {code} {said}");
        assert!(strikes(&said) > 0, "{faults}: {said}");
        disk.repair();
        let started = site.start();
        assert_whole(&site, &started, &plan, &replies);
        for (planned, reply) in plan.iter().zip(&mut replies) {
            *reply = post_to(started.http, planned);
        }
        // Otherwise the next start would have no segment to make.
        started.transfer_accepted(USERS[0], Way::ToSpot, "0.00000001");
        site.wait_for_rest();
        server = Some(started);
    }
}

/// Goal: a failed snapshot affects nothing else. Method: each step of one fails while it is made;
/// the service continues; kill, restart on the repaired disk; a snapshot, and the covered log is
/// removed.
#[test]
fn a_snapshot_that_fails_is_said_and_costs_nothing() {
    const STEPS: [&str; 6] = [
        "snapshots/write:enospc",
        "snapshots/sync_file:eio",
        "snapshots/rename:eio",
        "snapshots/sync_directory:eio@1",
        "snapshots/write:eio",
        "snapshots/rename:enospc",
    ];
    for (round, faults) in STEPS.iter().enumerate().take(if thorough() { STEPS.len() } else { 4 }) {
        let disk = Disk::new(Site::fused(round.is_multiple_of(2)), faults);
        let site = &disk.site;
        let server = site.start();
        endow(site, &server);
        disk.break_it();
        ask_for_snapshot(&server);
        eventually("the failure", || (strikes(&server.said()) > 0).then_some(()));
        server.says("snapshot_failed");
        // No snapshot without proven durability is left, nor a part of one.
        assert_eq!(fs::read_dir(site.snapshot_dir()).expect("a directory").count(), 0, "{faults}");
        let plan = plan_of_round(24, round);
        let replies: Vec<_> = plan.iter().map(|planned| post_to(server.http, planned)).collect();
        site.wait_for_rest();
        said_only(&server.said(), &[Alert::SnapshotFailed]);
        server.kill();
        disk.repair();
        let server = site.start();
        assert_whole(site, &server, &plan, &replies);
        force(site, &server);
        server.kill();
        site.assert_in_order(&site.start());
    }
}

/// Goal: a slow disk causes late answers, not wrong ones. Method: every sync takes 50 ms longer, or
/// some of them 2 s, under a load with cids while the audit runs; no alert but that of a stuck
/// transfer; then sums and every answer, after a kill too.
#[test]
fn a_slow_disk_answers_late_and_right() {
    const EVERY: &str = "sync:slow50,fill:slow50,settle:slow50,sync_directory:slow50";
    const STALLS: &str =
        "sync:slow2000@10,sync:slow2000@40,wal/sync_directory:slow2000@1,fill:slow2000@1";
    let all = [(EVERY, true), (STALLS, false), (EVERY, false), (STALLS, true)];
    for (faults, fuse) in all.into_iter().take(if thorough() { 4 } else { 2 }) {
        let site = Site::fused(fuse)
            .with("UBSCORE__CONSERVATION__EVERY_MS", 100)
            .with("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 1_500);
        let disk = Disk::new(site, faults);
        let server = disk.site.start();
        endow(&disk.site, &server);
        disk.break_it();
        let plan = plan(200);
        let replies = load(&server, &plan, CALLERS, |_| false);
        for reply in replies.iter().flatten() {
            assert!([200, 202].contains(&reply.status), "{faults}: {reply:?}");
        }
        assert_whole(&disk.site, &server, &plan, &replies);
        said_only(&server.said(), &[]);
        server.kill();
        let server = disk.site.start();
        assert_whole(&disk.site, &server, &plan, &replies);
    }
}

/// A server with old segments in its log, each left by a start. A snapshot would cover them at
/// once.
fn start_with_old_segments(site: &Site) -> Server {
    let mut server = site.start();
    endow(site, &server);
    for _ in 0..2 {
        server.kill();
        server = site.start();
        server.transfer_accepted(USERS[0], Way::ToSpot, "0.01");
        site.wait_for_rest();
    }
    assert!(segments(site).len() > 2, "{:?}", segments(site));
    server
}

/// Asks for a snapshot, and does not wait for it.
fn ask_for_snapshot(server: &Server) {
    let ask = serde_json::json!({"reason": "a test"});
    assert_eq!(server.admin("POST", "/admin/v1/snapshot", &ask).status, 202);
}

/// Story: the engine removed segments that snapshots cover, and continued after the sync of their
/// directory failed. The failure could have concerned a new segment's name. The sync of that name
/// would then have reported success.
#[test]
fn a_failed_sync_of_the_logs_directory_is_the_end_whoever_asked_for_it() {
    let site =
        Site::new().with("UBSCORE__SNAPSHOT__KEEP", 1).with("UBSCORE__CONSERVATION__EVERY_MS", 50);
    let disk = Disk::new(site, "wal/sync_directory:eio@1");
    let mut server = start_with_old_segments(&disk.site);
    disk.break_it();
    ask_for_snapshot(&server);
    let (status, said) = server.wait();
    assert_eq!((status.code(), strikes(&said)), (Some(EXIT_ENGINE), 1), "{said}");
    said_only(&said, &[Alert::WalSyncFailed]);
    disk.repair();
    let server = disk.site.start();
    disk.site.wait_for_rest();
    disk.site.assert_in_order(&server);
}

/// Story: a process died between the renaming of a snapshot and the sync of its directory. The next
/// process relied on the name and removed the covered log. A power cut would then have left
/// neither.
#[test]
fn a_snapshots_name_is_durable_before_the_log_behind_it_goes() {
    let powered = Powered::new(true);
    let site = powered.site.clone();
    let site = site.with("UBSCORE__SNAPSHOT__KEEP", 1).with("UBSCORE__CONSERVATION__EVERY_MS", 50);
    let disk = Disk::new(site, "snapshots/sync_directory:kill@1");
    let mut server = start_with_old_segments(&disk.site);
    disk.break_it();
    ask_for_snapshot(&server);
    assert_eq!(server.wait().0.signal(), Some(9));
    disk.repair();
    let [(_, snapshot)] = &snapshots(&disk.site)[..] else { panic!("not one snapshot") };
    let server = disk.site.start();
    eventually("the first segment to go", || (segments(&disk.site)[0].0 > 1).then_some(()));
    let durable = powered.durable_names(&disk.site.snapshot_dir());
    let name = snapshot.file_name().and_then(|name| name.to_str()).expect("text");
    assert!(durable.iter().any(|durable| durable == name), "{name}: {durable:?}");
    disk.site.assert_in_order(&server);
}
