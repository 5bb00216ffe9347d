//! Snapshots: a start from them equals a start from the whole log, the log behind them is removed,
//! and no wrong one is used.

use std::fs;
use std::net::TcpListener;
#[cfg(feature = "crash")]
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use domain::account::AccountStatus;
use engine::core::Core;
use engine::fact::{FACT_BYTES_MAX, Fact};
use engine::ledger::Ledger;
use engine::snapshot::Snapshot;
use serde_json::{Value, json};
use ubscore::alert::Alert;

use crate::alerts::assert_raised;
use crate::harness::{
    Planned, Request, Server, Site, USERS, Way, Webhook, assert_kept, assert_refused, copy_files,
    crowd, endow, eventually, force, numbered_files, post_to, refused, segments, send,
    small_engine, snapshots, token,
};

const USER: u64 = USERS[0];

/// A site with rolling segments and frequent snapshots.
fn small() -> Site {
    // Segments are kept until the audit has read them.
    Site::new()
        .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16)
        .with("UBSCORE__SNAPSHOT__KEEP", 2)
        .with("UBSCORE__CONSERVATION__EVERY_MS", 100)
}

/// Transfers and snapshots, each from a start of its own, until the log has lost its first segment.
fn cut(site: &Site) -> Server {
    let mut server = site.start();
    endow(site, &server);
    loop {
        assert_eq!(server.transfer(USER, Way::ToSpot, "0.5").status, 200);
        site.wait_for_rest();
        force(site, &server);
        let kept = snapshots(site).len() == 2;
        let gone = || (segments(site)[0].0 > 1).then_some(());
        server.kill();
        server = site.start();
        if kept {
            // This start's segment is behind both snapshots, so that the next round removes one.
            force(site, &server);
            eventually("the first segment to go", gone);
            return server;
        }
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("there");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("written");
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("text")
}

/// Goal: after any run time and any end, the log and the snapshots stay small and nothing is lost.
/// Method: rounds of transfers of four users at once, with snapshots every 150 records, later every
/// 16 KiB; SIGKILL after a number of answers and a snapshot; restart; rest; sums; every cid again.
#[test]
fn a_log_stays_bounded_through_kills_and_keeps_every_answer() {
    const ROUNDS: usize = 4;
    const TRANSFERS: usize = 250;
    let mut site = small().with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 150);
    let mut newest = 0;
    let mut server = site.start();
    endow(&site, &server);
    for round in 0..ROUNDS {
        let planned = |index: usize| {
            let way = Way::BOTH[index / USERS.len() % 2];
            let body = way.body_with_cid("USDT", "0.01", &format!("bounded-{round}-{index}"));
            Planned { user: USERS[index % USERS.len()], body }
        };
        let plan: Vec<_> = (0..TRANSFERS).map(planned).collect();
        let kill_after = TRANSFERS - 40 + 7 * round;
        let (http, answered) = (server.http, Mutex::new((0, Some(server))));
        let replies = crowd(10, |caller| {
            let of_caller = plan.iter().enumerate().skip(caller).step_by(10);
            let post = |(index, planned)| {
                let reply = post_to(http, planned);
                let mut answered = answered.lock().expect("not poisoned");
                answered.0 += 1;
                if answered.0 == kill_after {
                    let newer = || (snapshots(&site).first()?.0 > newest).then_some(());
                    eventually("a snapshot of this round", newer);
                    answered.1.take().expect("once").kill();
                }
                (index, reply)
            };
            of_caller.map(post).collect::<Vec<_>>()
        });
        let mut in_order = vec![None; TRANSFERS];
        for (index, reply) in replies.into_iter().flatten() {
            in_order[index] = reply;
        }
        if round == ROUNDS / 2 {
            site = site
                .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 1_000_000)
                .with("UBSCORE__SNAPSHOT__EVERY_BYTES", 16_384);
        }
        let before = newest;
        newest = snapshots(&site).first().expect("seen before the kill").0;
        assert!(newest > before, "round {round}");
        server = site.start();
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &in_order);
        site.assert_in_order(&server);
    }
    eventually("the log to be cut", || {
        let (segments, snapshots) = (segments(&site), snapshots(&site));
        let (first, last) = (segments.first()?.0, segments.last()?.0);
        // The need of two snapshots of 150 records, and the segments that a start or two have
        // opened.
        (first > 1 && last - first <= 4 && snapshots.len() <= 3).then_some(())
    });
    let balances = USERS.map(|user| server.balances(user));
    server.kill();
    let server = site.start();
    assert!(!server.said().contains("snapshot=0 "), "{}", server.said());
    assert_eq!(USERS.map(|user| server.balances(user)), balances);
    site.assert_in_order(&server);
}

#[test]
fn a_damaged_snapshot_is_passed_over_for_the_one_before_it() {
    let site = small();
    let server = cut(&site);
    let balances = USERS.map(|user| server.balances(user));
    server.kill();
    let newest = snapshots(&site).remove(0).1;
    flip(&newest, 70);
    let server = site.start();
    server.says(&format!("{} is damaged", newest.display()));
    assert_eq!(USERS.map(|user| server.balances(user)), balances);
    site.assert_in_order(&server);
    // It is ignored: the good one before it stays.
    let good = snapshots(&site)[1].clone();
    force(&site, &server);
    assert!(snapshots(&site).contains(&good));
    assert_eq!(server.transfer(USER, Way::ToFunding, "0.25").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

#[test]
fn damaged_snapshots_are_no_loss_while_the_log_is_whole() {
    let site = small();
    let server = site.start();
    endow(&site, &server);
    force(&site, &server);
    let balances = USERS.map(|user| server.balances(user));
    server.kill();
    let only = snapshots(&site).remove(0).1;
    fs::write(&only, b"").expect("written");
    let server = site.start();
    assert_eq!(USERS.map(|user| server.balances(user)), balances);
    site.assert_in_order(&server);
}

#[test]
fn without_a_snapshot_a_cut_log_is_refused() {
    let site = small();
    cut(&site).kill();
    let all = snapshots(&site);
    for (_, path) in &all {
        flip(path, 70);
    }
    let (code, said) = site.start_refused();
    assert_ne!(code, 0, "{said}");
    for (_, path) in &all {
        assert!(said.contains(name(path)), "{said}");
    }
    assert!(said.contains("no usable snapshot") && said.contains("missing segment"), "{said}");
    for (_, path) in &all {
        fs::remove_file(path).expect("removed");
    }
    let (code, said) = site.start_refused();
    assert!(code != 0 && said.contains("no usable snapshot"), "{code} {said}");
}

/// Rewrites a snapshot with `more` of one balance, and a correct checksum; with a correct digest if
/// `thorough`.
fn tamper(path: &Path, thorough: bool) {
    let snapshot = Snapshot::open(path).expect("whole");
    let mut bytes = fs::read(path).expect("there")[..64].to_vec();
    let (mut digest, mut tampered) = (0_u128, false);
    for fact in snapshot.facts().expect("readable") {
        let mut fact = fact.expect("readable");
        if let Fact::Balance { available, totals, .. } = &mut fact
            && !tampered
        {
            *available += 1;
            totals.deposits += 1;
            tampered = true;
        }
        digest = digest.wrapping_add(fact.digest());
        let mut buffer = [0; FACT_BYTES_MAX];
        let (tag, length) = fact.encode(&mut buffer);
        bytes.push(tag);
        bytes.extend_from_slice(&buffer[..length]);
    }
    assert!(tampered, "there is a balance");
    if thorough {
        bytes[48..64].copy_from_slice(&digest.to_le_bytes());
    }
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    fs::write(path, bytes).expect("written");
}

/// Goal: no edit of a snapshot makes money, however careful it is. Method: a changed balance with a
/// corrected checksum; the same with the digest in the file corrected too, so that only the log
/// contradicts.
#[test]
fn a_snapshot_with_a_changed_balance_is_refused() {
    for thorough in [false, true] {
        let site = small();
        let server = site.start();
        endow(&site, &server);
        force(&site, &server);
        server.kill();
        let path = snapshots(&site).remove(0).1;
        tamper(&path, thorough);
        let (code, said) = site.start_refused();
        assert_ne!(code, 0, "{said}");
        assert!(said.contains(name(&path)) && said.contains("adds up to"), "{said}");
    }
}

#[test]
fn a_snapshot_of_another_log_is_refused() {
    let (site, other) = (small(), small());
    for site in [&site, &other] {
        let server = site.start();
        endow(site, &server);
        force(site, &server);
        server.kill();
    }
    let (_, foreign) = snapshots(&other).remove(0);
    for (_, path) in snapshots(&site) {
        fs::remove_file(path).expect("removed");
    }
    fs::copy(&foreign, site.snapshot_dir().join(name(&foreign))).expect("copied");
    let (code, said) = site.start_refused();
    assert!(code != 0 && said.contains(name(&foreign)), "{code} {said}");
    assert!(said.contains("belongs to log"), "{said}");
}

#[test]
fn an_older_copy_of_the_log_beside_a_newer_snapshot_is_refused() {
    let site = small();
    let server = site.start();
    endow(&site, &server);
    server.kill();
    let older = site.data_dir.join("older");
    copy_files(&site.log_dir(), &older);
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    force(&site, &server);
    server.kill();
    fs::remove_dir_all(site.log_dir()).expect("removed");
    copy_files(&older, &site.log_dir());
    let (code, said) = site.start_refused();
    let (_, newest) = snapshots(&site).remove(0);
    assert!(code != 0 && said.contains(name(&newest)), "{code} {said}");
    assert!(said.contains("which the log does not hold"), "{said}");
    // And without any log.
    fs::remove_dir_all(site.log_dir()).expect("removed");
    let (code, said) = site.start_refused();
    assert!(code != 0 && said.contains(name(&newest)), "{code} {said}");
}

/// Goal: no segment is removed before it is safe elsewhere. Method: a hook that copies, and fails
/// as long as a file blocks it; the removed segments are compared with the originals.
#[test]
fn every_segment_is_archived_before_it_goes() {
    let archive = tempfile::tempdir().expect("a directory");
    let here = archive.path().display();
    let hook =
        format!("test ! -e {here}/full && cp \"%p\" {here}/%f.part && mv {here}/%f.part {here}/%f");
    let site =
        small().with("UBSCORE__SNAPSHOT__ARCHIVE_COMMAND", hook).with("UBSCORE__SNAPSHOT__KEEP", 1);
    fs::write(archive.path().join("full"), "").expect("written");
    let mut server = site.start();
    endow(&site, &server);
    server.kill();
    server = site.start();
    force(&site, &server);
    server.says("archive a segment");
    let stood: Vec<_> = segments(&site);
    assert_eq!(stood[0].0, 1, "a segment went without being archived");
    let first = fs::read(&stood[0].1).expect("there");
    fs::remove_file(archive.path().join("full")).expect("removed");
    eventually("the first segment to go", || (segments(&site)[0].0 > 1).then_some(()));
    assert_eq!(fs::read(archive.path().join(name(&stood[0].1))).expect("archived"), first);
    for _ in 0..2 {
        server.kill();
        server = site.start();
        force(&site, &server);
    }
    server.stop();
    let left = segments(&site)[0].0;
    assert!(left > 1);
    let archived: Vec<u64> = numbered_files(archive.path(), "segment-", ".wal")
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert!(archived.len() as u64 >= left - 1, "{archived:?}, and the log begins with {left}");
    assert!((1..left).all(|number| archived.contains(&number)), "{archived:?}");
    // The archive and the rest are one log.
    let whole = site.data_dir.join("whole");
    copy_files(archive.path(), &whole);
    for (_, path) in segments(&site) {
        fs::copy(&path, whole.join(name(&path))).expect("copied");
    }
    let verify = Command::new(env!("CARGO_BIN_EXE_ubscore"))
        .args(["wal", "verify"])
        .arg(&whole)
        .output()
        .expect("the binary");
    assert!(verify.status.success(), "{verify:?}");
}

/// Goal: a snapshot may die at every step without a loss. Method: each point armed; a snapshot
/// requested; SIGKILL; restart without the point; the same balances and transfers, sums, and the
/// next snapshot.
#[cfg(feature = "crash")]
#[test]
fn a_death_at_every_point_of_a_snapshot_is_recovered_from() {
    let site = small().with("UBSCORE__SNAPSHOT__KEEP", 1);
    let mut server = site.start();
    endow(&site, &server);
    for (round, point) in ubscore::crash::SNAPSHOT_POINTS.iter().enumerate() {
        let body = Way::ToSpot.body_with_cid("USDT", "0.25", &format!("snapshot-{round}"));
        let first = server.post(USER, &body);
        assert_eq!(first.status, 200, "{first:?}");
        site.wait_for_rest();
        let balances = USERS.map(|user| server.balances(user));
        server.kill();
        // A start removes the leftovers of the death before, and may die there.
        let armed = site.clone().with("UBSCORE_CRASH", point);
        let (status, said) = match Server::try_start(armed.command()) {
            Err(ended) => ended,
            Ok(mut dying) => {
                let ask = json!({"reason": "a test"});
                let admin = token(USER, Some(ubscore::http::auth::Role::Admin));
                let path = "/admin/v1/snapshot";
                let request = Request { body: Some(&ask), ..Request::new(&admin, "POST", path) };
                // It may die before, while or after it answers.
                drop(send(dying.ops, &request));
                dying.wait()
            }
        };
        assert_eq!(status.signal(), Some(9), "{point}: {status} {said}");
        server = site.start();
        assert_eq!(USERS.map(|user| server.balances(user)), balances, "{point}");
        assert_eq!(server.post(USER, &body).json(), first.json(), "{point}");
        site.assert_in_order(&server);
        force(&site, &server);
        eventually("one snapshot to be kept", || (snapshots(&site).len() == 1).then_some(()));
        let unfinished = numbered_files(&site.snapshot_dir(), "snapshot-", ".tmp");
        assert_eq!(unfinished, [], "{point}");
        server.kill();
        server = site.start();
        assert_eq!(USERS.map(|user| server.balances(user)), balances, "{point}");
        site.assert_in_order(&server);
    }
    eventually("the log to be cut", || (segments(&site)[0].0 > 1).then_some(()));
}

/// Story: the thread's panic also ended its task. The task ended the process with 71, unless the
/// guard of the thread was faster with 70. Method: a panic at a snapshot's first point.
#[cfg(feature = "crash")]
#[test]
fn a_panic_in_a_snapshot_ends_the_process_as_damage() {
    let site = small().with("UBSCORE_CRASH", "snapshot_before_rename=panic");
    let mut server = site.start();
    let ask = json!({"reason": "a test"});
    assert_eq!(server.admin("POST", "/admin/v1/snapshot", &ask).status, 202);
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(70), "{status} {said}");
    assert!(said.contains("stopped at once: a thread of the engine panicked"), "{said}");
    assert!(!said.contains("a task of the service ended"), "{said}");
}

fn inspect(path: &Path, format: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["snapshot", "inspect", "--format", format]).arg(path);
    let output = command.output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_snapshot_is_inspected_while_the_server_runs() {
    let site = small();
    let (code, _, said) = inspect(&site.data_dir, "text");
    assert!(code == Some(2) && said.contains("read"), "{said}");
    let server = site.start();
    endow(&site, &server);
    let sequence = force(&site, &server);
    let (_, path) = snapshots(&site).remove(0);
    for place in [site.data_dir.clone(), site.snapshot_dir(), path.clone()] {
        let (code, out, said) = inspect(&place, "json");
        assert_eq!((code, &*said), (Some(0), ""));
        let object: Value = serde_json::from_str(&out).expect("one object");
        assert_eq!(object["verdict"], "ok");
        assert_eq!(object["sequence"], sequence);
        let held = json!({"assets": 6, "accounts": 4, "balances": 8, "outcomes": 20, "venues": 0,
                "holds": 0, "postings": 0, "answers": 0,
                "watermark": 0});
        assert_eq!(object["held"], held);
        let usdt = &object["sums"].as_array().expect("an array")[0];
        assert_eq!((&usdt["available"], &usdt["deposits"]), (&json!("8"), &json!("8")), "{out}");
        let (code, out, _) = inspect(&place, "text");
        assert_eq!(code, Some(0));
        assert!(out.starts_with("ok ") && out.contains(" accounts=4 balances=8 "), "{out}");
        assert!(out.contains("\n  USDT available=8 deposits=8 withdrawals=0 refunds=0\n"), "{out}");
    }
    server.stop();
    tamper(&path, false);
    let (code, out, said) = inspect(&site.data_dir, "text");
    assert!(code == Some(1) && out.starts_with("refused ") && said.contains(name(&path)), "{out}");
    flip(&path, 70);
    let (code, out, said) = inspect(&site.data_dir, "text");
    assert!(code == Some(1) && out.starts_with("damaged ") && said.contains(name(&path)), "{out}");
    fs::remove_file(&path).expect("removed");
    let (code, out, said) = inspect(&site.data_dir, "text");
    assert!(code == Some(2) && out.is_empty() && said.contains("holds no snapshot"), "{said}");
    let (code, _, said) = inspect(&path, "text");
    assert!(code == Some(2) && said.contains(name(&path)), "{said}");
}

/// Goal: the differences between two snapshots are listed, all of them and no more than requested.
/// Method: a transfer, a frozen account and a new one between the two; each way, with itself, and
/// damaged.
#[test]
fn two_snapshots_are_compared() {
    let site = small();
    let server = site.start();
    endow(&site, &server);
    let first = force(&site, &server);
    assert_eq!(server.transfer(USER, Way::ToSpot, "0.25").status, 200);
    server.set_status(USERS[1], "SPOT", "FROZEN");
    let stranger = 4_000;
    server.deposit(stranger, "USDT", "1");
    assert_eq!(server.transfer(stranger, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    let second = force(&site, &server);
    server.stop();
    let path = |sequence: u64| site.snapshot_dir().join(format!("snapshot-{sequence:016x}.snap"));
    let (a, b) = (path(first), path(second));
    let diff = |words: &[&str], a: &Path, b: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["snapshot", "inspect"]).args(words).arg("--diff").args([a, b]);
        let output = command.output().expect("the binary");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };

    let (code, out, said) = diff(&["--format", "json"], &a, &b);
    assert_eq!((code, &*said), (Some(1), ""), "{out}");
    let object: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(object["verdict"], "differs");
    assert_eq!(
        (&object["a"]["sequence"], &object["b"]["sequence"]),
        (&first.into(), &second.into())
    );
    for (class, added, changed) in [
        ("assets", 0, 0),
        ("accounts", 1, 1),
        ("balances", 1, 1),
        ("outcomes", 3, 0),
        ("outside", 0, 1),
    ] {
        let found = &object[class];
        assert_eq!((&found["added"], &found["changed"]), (&added.into(), &changed.into()), "{out}");
        assert_eq!((&found["removed"], &found["more"]), (&0.into(), &0.into()), "{out}");
    }
    let sums = object["sums"].as_array().expect("an array");
    let usdt = sums.iter().find(|sum| sum["b"]["asset"] == "USDT").expect("USDT");
    assert_eq!((&usdt["a"]["available"], &usdt["b"]["available"]), (&json!("8"), &json!("9.25")));

    let (code, out, _) = diff(&[], &a, &b);
    assert_eq!(code, Some(1));
    for want in [
        format!("differs {} {}\n", a.display(), b.display()),
        format!("\nsequence {first}->{second}\n"),
        "\nassets added=0 removed=0 changed=0\n".to_owned(),
        format!("\n  ~ user={} status=ACTIVE->FROZEN\n", USERS[1]),
        format!("\n  + status=ACTIVE user={stranger}\n"),
        " asset=USDT ".to_owned(),
        " available=2->2.25 deposits=2->2.25\n".to_owned(),
    ] {
        assert!(out.contains(&want), "{want} is not in\n{out}");
    }
    let (_, out, _) = diff(&["--limit", "1"], &b, &a);
    assert!(out.contains("\noutcomes added=0 removed=3 changed=0\n  - "), "{out}");
    assert!(out.contains("\n  and 2 more\noutside added=0 removed=0 changed=1\n  ~ "), "{out}");
    let (code, out, _) = diff(&[], &a, &a);
    assert!(code == Some(0) && out.starts_with("same "), "{out}");
    flip(&b, 70);
    let (code, out, said) = diff(&[], &a, &b);
    assert!(code == Some(1) && out.is_empty() && said.contains(name(&b)), "{out}{said}");
    fs::remove_file(&b).expect("removed");
    let (code, _, said) = diff(&[], &a, &b);
    assert!(code == Some(2) && said.contains(name(&b)), "{said}");
}

/// Goal: an obstacle to a snapshot is reported, and neither transfers nor the log suffer; a
/// snapshot that contradicts the log halts. Method: a file in the place of the directory, removed
/// later; then a snapshot changed under the running server.
#[test]
fn what_stands_in_the_way_of_a_snapshot_is_alerted_and_tried_again() {
    let webhook = Webhook::start();
    let site = small()
        .with("UBSCORE__SNAPSHOT__KEEP", 1)
        .with("UBSCORE__ALERT__WEBHOOK_URL", webhook.url());
    let server = site.start();
    endow(&site, &server);
    let (aside, ask) = (site.data_dir.join("aside"), json!({"reason": "a test"}));
    fs::rename(site.snapshot_dir(), &aside).expect("renamed");
    fs::write(site.snapshot_dir(), "in the way").expect("written");
    assert_eq!(server.admin("POST", "/admin/v1/snapshot", &ask).status, 202);
    assert_raised(&server, &webhook, Alert::SnapshotFailed);
    assert_eq!(server.transfer(USER, Way::ToSpot, "0.5").status, 200);
    fs::remove_file(site.snapshot_dir()).expect("removed");
    fs::rename(&aside, site.snapshot_dir()).expect("renamed");
    eventually("the snapshot that was asked for", || snapshots(&site).first().map(|_| ()));

    let (_, path) = snapshots(&site).remove(0);
    let kept = fs::read(&path).expect("there");
    tamper(&path, true);
    assert_eq!(server.admin("POST", "/admin/v1/snapshot", &ask).status, 202);
    assert_raised(&server, &webhook, Alert::SnapshotMismatch);
    assert_eq!(snapshots(&site).len(), 1);
    eventually("the halt", || (server.ready() == 503).then_some(()));
    assert_refused(&server.transfer(USER, Way::ToFunding, "0.25"), 503, "SERVICE_HALTED");
    fs::write(&path, kept).expect("written");
    let resumed = server.resume("repaired");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_eq!(server.transfer(USER, Way::ToFunding, "0.25").status, 200);
    eventually("the next snapshot", || (snapshots(&site)[0].1 != path).then_some(()));
    site.wait_for_rest();
    site.assert_in_order(&server);
}

#[test]
fn a_snapshot_is_an_operators_affair_and_leaves_a_trace() {
    let site = small();
    let server = site.start();
    let path = "/admin/v1/snapshot";
    let user = token(USER, None);
    let body = json!({"reason": "before the upgrade"});
    let request = Request { body: Some(&body), ..Request::new(&user, "POST", path) };
    assert_eq!(send(server.ops, &request).expect("an answer").status, 403);
    assert_eq!(server.admin("POST", path, &json!({})).status, 400);
    let sequence = force(&site, &server);
    let reason = "SELECT reason FROM admin_audit WHERE action = 'snapshot'";
    assert_eq!(site.sql_value(reason), "a test");
    let metrics = || {
        let request = Request::new(&user, "GET", "/metrics");
        send(server.ops, &request).expect("an answer").body
    };
    eventually("the metrics", || {
        metrics().contains(&format!("ubscore_snapshot_sequence {sequence}\n")).then_some(())
    });
    for name in [
        "ubscore_snapshot_seconds ",
        "ubscore_snapshot_bytes ",
        "ubscore_snapshot_timestamp_seconds ",
        "ubscore_segments_removed_total ",
    ] {
        assert!(metrics().contains(name), "{name}");
    }
}

/// Goal: during its start a server is alive and not ready. Method: the start waits for a row that a
/// session locks; the operators' listener is queried meanwhile.
#[test]
fn a_starting_server_lives_and_is_not_ready() {
    let site = small()
        .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 60_000)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 60_000);
    site.start().stop();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let ops = port.expect("a free port");
    let session = site.session();
    session.sql("BEGIN; SELECT 1 FROM engine_state FOR UPDATE");
    let command = site.command_on("127.0.0.1:0", &ops.to_string());
    let starting = thread::spawn(move || Server::start(command));
    let token = token(USER, None);
    let ask = |path: &str| send(ops, &Request::new(&token, "GET", path)).ok();
    let ready = eventually("the listener", || ask("/readyz"));
    assert_eq!((ready.status, ready.refusal().1.as_str()), (503, "SYSTEM_ERROR"));
    assert_eq!(ask("/healthz").map(|reply| reply.status), Some(200));
    assert_eq!(ask("/metrics").map(|reply| reply.status), Some(200));
    let body = json!({"reason": "too early"});
    let early = Request { body: Some(&body), ..Request::new(&token, "POST", "/admin/v1/snapshot") };
    assert_eq!(send(ops, &early).map(|reply| reply.status).ok(), Some(503));
    session.sql("COMMIT");
    let server = starting.join().expect("it started");
    assert_eq!(ask("/readyz").map(|reply| reply.status), Some(200));
    server.stop();
}

#[test]
fn a_long_replay_tells_how_far_it_has_come() {
    let data = tempfile::tempdir().expect("a directory");
    let options = small_engine(data.path());
    let directory = wal::Directory::create(&options.log_dir).expect("made");
    let recovery = wal::Recovery::open(directory, 0, 0).expect("empty");
    let wal_options = wal::Options { segment_bytes: options.segment_bytes, spares_ready: 1 };
    let (log, _) = recovery.start(wal::Identity(7), wal_options).expect("started");
    let wal::Log { writer, mut syncer, preparer, durable } = log;
    let mut core = Core::new(Ledger::new(options.places), writer);
    for turn in 0..5_000 {
        let status = [AccountStatus::Frozen, AccountStatus::Active][turn % 2];
        core.decide(&engine::command::Command::SetStatus { user: USER, status }, 0);
    }
    assert_eq!(syncer.sync().expect("synced"), 5_000);
    drop((core, syncer, preparer, durable));
    let mut steps = Vec::new();
    let closed = engine::Closed::open(options).expect("a log");
    closed.replay(0, |progress| steps.push((progress.records, progress.sequence))).expect("sound");
    assert_eq!(steps, [(4_096, 4_096)]);
}

#[test]
fn a_second_process_leaves_the_snapshots_alone() {
    let site = small();
    let server = site.start();
    let making = site.snapshot_dir().join("snapshot-00000000000000ff.tmp");
    fs::write(&making, "in the making").expect("written");
    let (code, said) = refused(site.command());
    assert!(code != 0 && said.contains(&server.pid().to_string()), "{said}");
    assert!(making.exists(), "another process removed it");
    server.stop();
    site.start().stop();
    assert!(!making.exists(), "the next start clears it away");
}
