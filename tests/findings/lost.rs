//! F7: the log is gone, PostgreSQL is not. `ubscore engine adopt` writes a new log from
//! PostgreSQL's proofs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    Balance, Reply, Server, Site, Way, forgetful, said, snapshots, token, wait_for_all_below,
};

const USERS: [u64; 3] = [1001, 1002, 1003];
const REASON: &str = "the disk is gone";
const PLAN: [&str; 1] = ["--plan"];
const APPLY: [&str; 3] = ["--apply", "--reason", REASON];

/// The result of a command.
#[derive(Debug)]
struct Done {
    /// `None` if it was killed.
    code: Option<i32>,
    out: String,
    why: String,
}

impl Done {
    #[track_caller]
    fn with_code(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.why);
        self.out
    }

    /// Asserts a refusal that contains `what` and names the next command.
    #[track_caller]
    fn refused(self, what: &str) {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.why);
        assert!(self.why.contains(what) && self.why.contains("next: "), "{}", self.why);
    }
}

fn run(mut command: Command) -> Done {
    let output = command.output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Done { code: output.status.code(), out: text(output.stdout), why: text(output.stderr) }
}

/// `ubscore engine adopt`.
fn adopt(site: &Site, words: &[&str]) -> Done {
    run(site.tool([&["engine", "adopt"], words].concat()))
}

fn remove(directory: PathBuf) {
    if directory.is_dir() {
        fs::remove_dir_all(directory).expect("removed");
    }
}

/// The disk with the log and its snapshots dies.
fn lose(site: &Site) {
    remove(site.log_dir());
    remove(site.snapshot_dir());
    // The rest of the data directory was on it, too.
    fs::remove_file(site.flights()).expect("removed");
}

/// A site's state before it lost its log.
struct Before {
    answers: Vec<(u64, Value, Reply)>,
    balances: Vec<BTreeMap<String, Balance>>,
}

fn balances(server: &Server) -> Vec<BTreeMap<String, Balance>> {
    USERS.map(|user| server.balances(user)).to_vec()
}

/// One transfer with a cid and a final answer.
fn post(
    answers: &mut Vec<(u64, Value, Reply)>,
    server: &Server,
    user: u64,
    way: Way,
    amount: &str,
) {
    let body = way.body_with_cid("USDT", amount, &format!("cid-{}", answers.len()));
    let reply = server.post_ended(user, &body);
    assert!([200, 422].contains(&reply.status), "{reply:?}");
    answers.push((user, body, reply));
}

/// Transfers of each end, both ways, and changing statuses.
fn each_end(answers: &mut Vec<(u64, Value, Reply)>, server: &Server) {
    let mut post = |user, way, amount: &str| post(answers, server, user, way, amount);
    for user in USERS {
        server.deposit(user, "USDT", "100");
        post(user, Way::ToSpot, "50.5");
        post(user, Way::ToFunding, "20");
        post(user, Way::ToFunding, "99999");
        post(user, Way::ToSpot, "99999");
        server.set_status(user, "SPOT", "DISABLED");
        post(user, Way::ToSpot, "4");
        post(user, Way::ToFunding, "1");
        server.set_status(user, "SPOT", "ACTIVE");
        server.set_status(user, "FUNDING", "DISABLED");
        post(user, Way::ToFunding, "5");
        server.set_status(user, "FUNDING", "ACTIVE");
        post(user, Way::ToFunding, "0.75");
    }
}

/// Users with a history of each end: the first part below the watermark, the second above it;
/// killed at rest.
fn history(site: &Site) -> Before {
    let mut answers = Vec::new();
    let server = forgetful(site.clone()).start();
    each_end(&mut answers, &server);
    site.wait_for_rest();
    wait_for_all_below(site);
    server.kill();
    let server = site.start();
    each_end(&mut answers, &server);
    // A status that is in force when the log is lost.
    server.set_status(USERS[2], "SPOT", "FROZEN");
    site.wait_for_rest();
    let balances = balances(&server);
    server.kill();
    Before { answers, balances }
}

/// Starts halted, resumes, and asserts that everything is as before, and continues.
fn assert_as_before(site: &Site, before: &Before) {
    site.assert_verified();
    let server = site.start();
    assert_eq!(server.ready(), 503, "it is halted");
    let resumed = server.resume("rebuilt");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    site.wait_for_rest();
    assert_eq!(balances(&server), before.balances);
    for (user, body, first) in &before.answers {
        let now = server.post(*user, body);
        assert_eq!((now.status, now.req_id()), (first.status, first.req_id()), "{now:?}");
        for field in ["state", "code"] {
            assert_eq!(now.json()[field], first.json()[field], "{now:?}");
        }
    }
    let frozen = server.transfer_ended(USERS[2], Way::ToFunding, "1");
    assert_eq!(frozen.json()["code"], json!("ACCOUNT_FROZEN"), "{frozen:?}");
    assert_eq!(balances(&server), before.balances);
    for way in Way::BOTH {
        let reply = server.transfer_ended(USERS[0], way, "1");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
    server.stop();
    // Without the first start's memory.
    let server = site.start();
    assert_eq!(server.ready(), 200);
    assert_eq!(balances(&server), before.balances);
    site.assert_in_order(&server);
    server.stop();
}

/// A copy of a site in its state, without connections.
fn twin(site: &Site) -> Site {
    let copy = site.with_copied_database().with_fresh_data_dir();
    site.copy_data(&copy);
    copy
}

/// The doctor's line about log and database.
fn pair(site: &Site) -> String {
    let (_, out, err) = said(&site.tool(["doctor"]).output().expect("the binary"));
    let lines: Vec<&str> = out.lines().collect();
    let at = lines.iter().position(|line| line.contains("  log and database")).expect(&err);
    lines[at..lines.len().min(at + 2)].join("\n")
}

/// Goal: a lost log is rebuilt from PostgreSQL alone: every balance, status and answer, below the
/// watermark and above it; and until then each refusal names the next command. Method: the history
/// above, the log and its snapshots removed, and every step of the way.
#[test]
fn f07_a_lost_log_is_rebuilt_from_postgresql() {
    let site = Site::new();
    let before = history(&site);
    assert!(pair(&site).starts_with("ok "), "{}", pair(&site));
    let old = twin(&site);
    lose(&site);
    let (code, why) = site.start_refused();
    assert!(code != 0 && why.contains("ubscore engine adopt --plan"), "{why}");
    let seen = pair(&site);
    assert!(seen.starts_with("bad ") && seen.contains("next: "), "{seen}");
    assert!(seen.contains("ubscore engine adopt --plan"), "{seen}");

    let planned = adopt(&site, &PLAN).with_code(0);
    assert!(
        planned.contains("would    carry ") && planned.contains("USDT on 3 balances"),
        "{planned}"
    );
    assert!(planned.contains("user 1003: set the SPOT account to FROZEN"), "{planned}");
    assert!(planned.contains("planned transfers=24 open=0 left=0\n"), "{planned}");
    let done = adopt(&site, &APPLY).with_code(0);
    assert!(done.contains("rebuilt transfers=24 open=0 left=0\n"), "{done}");
    let note = "SELECT actor, reason FROM admin_audit WHERE action = 'cut'";
    assert_eq!(site.sql(note), [["ubscore engine adopt", REASON]]);
    adopt(&site, &APPLY).refused("is there and can be read");
    assert!(pair(&site).starts_with("ok "), "{}", pair(&site));
    assert_as_before(&site, &before);
    let statement = run(site.tool(["statement", "--user", "1001"]));
    assert_eq!(statement.code, Some(0), "{}{}", statement.out, statement.why);

    // A disk that was only unmounted comes back: its log is foreign now.
    let back = site.with_data_dir(&old.data_dir);
    let (code, why) = back.start_refused();
    assert!(code != 0 && why.contains("not a pair") && why.contains("next: "), "{why}");
    assert!(pair(&back).starts_with("bad "), "{}", pair(&back));
    adopt(&back, &PLAN).refused("not a pair");
}

/// Goal: a rebuild that dies anywhere is finished by the same command, and no start succeeds
/// before. Method: killed at each point, alone and one after the other.
#[cfg(feature = "crash")]
#[test]
fn f07_a_rebuild_that_is_killed_is_finished_by_the_next() {
    let site = Site::new();
    let before = history(&site);
    lose(&site);
    // The remains of the old log are set aside as well.
    fs::create_dir_all(site.log_dir()).expect("made");
    fs::write(site.log_dir().join("segment-0000000000000007.wal"), [7; 4096]).expect("written");
    let all = ubscore::crash::ADOPT_POINTS;
    for chain in all.iter().map(|point| vec![*point]).chain([all.to_vec()]) {
        let twin = twin(&site);
        for point in chain {
            // Steps of an earlier run are not repeated.
            let bound = "SELECT count(*) FROM admin_audit WHERE action = 'cut repaired'";
            if twin.sql_value(bound) == "0" {
                let mut command = twin.tool([&["engine", "adopt"][..], &APPLY].concat());
                command.env("UBSCORE_CRASH", point);
                let done = run(command);
                assert!(done.code.is_none() || point == "adopt_before_aside", "{done:?}");
                if done.code.is_none() && point != "adopt_after_renumbering" {
                    let (code, why) = twin.start_refused();
                    assert_ne!(code, 0, "{point}: {why}");
                    if point != "adopt_before_aside" {
                        assert!(why.contains("ubscore engine adopt"), "{point}: {why}");
                    }
                }
            }
        }
        let done = adopt(&twin, &APPLY);
        match done.code {
            Some(0) => {}
            _ => done.refused("is there and can be read"),
        }
        let aside = fs::read_dir(&twin.data_dir).expect("a directory").flatten();
        let aside =
            aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("wal-lost-"));
        let kept: Vec<_> =
            aside.flat_map(|entry| fs::read_dir(entry.path()).expect("one").flatten()).collect();
        assert!(
            kept.iter().any(|file| file.file_name() == "segment-0000000000000007.wal"),
            "{kept:?}"
        );
        assert_as_before(&twin, &before);
    }
}

/// Goal: a log that has lost its first segment before any snapshot is set aside whole, and rebuilt;
/// a damaged log that can be repaired is left to `wal repair`.
#[test]
fn f07_a_log_without_its_first_segment_is_set_aside() {
    let site = Site::new();
    let before = history(&site);
    assert_eq!(snapshots(&site).len(), 0);
    let mut segments: Vec<_> = fs::read_dir(site.log_dir())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains("segment-"))
        .collect();
    segments.sort();
    let damaged = twin(&site);
    let first = damaged.log_dir().join(segments[0].file_name().expect("a name"));
    let mut bytes = fs::read(&first).expect("a segment");
    bytes[4096 + 40] ^= 1;
    fs::write(&first, bytes).expect("written");
    adopt(&damaged, &PLAN).refused("damaged, not lost");

    let last = segments.last().expect("some");
    let last_bytes = fs::read(last).expect("a segment");
    fs::remove_file(&segments[0]).expect("removed");
    let (code, why) = site.start_refused();
    assert!(code != 0 && why.contains("next: "), "{why}");
    let planned = adopt(&site, &PLAN).with_code(0);
    assert!(planned.contains("would    set aside "), "{planned}");
    assert!(last.is_file(), "a plan changes nothing");
    let done = adopt(&site, &APPLY).with_code(0);
    let aside = done.lines().find_map(|line| line.split_once("set aside to ")).expect("named").1;
    let kept = PathBuf::from(aside).join(last.file_name().expect("a name"));
    assert!(fs::read(kept).expect("kept") == last_bytes, "the set-aside file equals the original");
    assert_as_before(&site, &before);
}

/// Goal: a rebuild is refused over an existing log, over a running service, from a database without
/// proof, or beside files that no rebuild knows. Method: each, by name.
#[test]
fn f07_a_rebuild_that_is_not_due_is_refused_by_name() {
    let site = Site::new();
    adopt(&site, &PLAN).refused("never used a log");
    let server = site.start();
    server.deposit(1001, "USDT", "10");
    assert_eq!(server.transfer_ended(1001, Way::ToSpot, "5").status, 200);
    site.wait_for_rest();
    let running = adopt(&site, &APPLY);
    assert!(
        running.code == Some(2) && running.why.contains(&server.pid().to_string()),
        "{running:?}"
    );
    server.stop();
    adopt(&site, &PLAN).refused("is there and can be read");
    let other = Site::new();
    other.start().stop();
    adopt(&other.with_data_dir(&site.data_dir), &PLAN).refused("not a pair");

    lose(&site);
    let before = site.sql("SELECT log_identity, incarnation, halted FROM engine_state");
    for (change, back, what) in [
        (
            "ALTER TABLE external_operations DROP CONSTRAINT external_operations_op_check; \
             INSERT INTO external_operations (order_number, idem_key, op, user_id, asset_id, amount) \
             VALUES (7, 'spot', 9, 1001, 3, 5e8)",
            "ALTER TABLE external_operations DISABLE TRIGGER USER; \
             DELETE FROM external_operations WHERE op = 9; \
             ALTER TABLE external_operations ENABLE TRIGGER USER",
            "external_operations, op 9",
        ),
        (
            "ALTER TABLE watermark_totals ADD COLUMN spot_traded NUMERIC(38,0) NOT NULL DEFAULT 0",
            "ALTER TABLE watermark_totals DROP COLUMN spot_traded",
            "watermark_totals.spot_traded",
        ),
        (
            "INSERT INTO watermark_totals (user_id, asset_id, spot_deposited) VALUES (1001, 3, 7e8)",
            "DELETE FROM watermark_totals WHERE user_id = 1001",
            "contradicts itself",
        ),
    ] {
        site.sql(change);
        let done = adopt(&site, &APPLY);
        assert!(done.code == Some(2) && done.why.contains(what), "{done:?}");
        site.sql(back);
    }
    assert_eq!(site.sql("SELECT log_identity, incarnation, halted FROM engine_state"), before);
    let (code, out) = (adopt(&site, &APPLY), "rebuilt transfers=");
    assert!(code.out.contains(out), "{code:?}");
}

/// Goal: a service that has lost its log's directory while running does not count as stopped.
#[test]
fn f07_a_service_whose_directory_is_gone_from_under_it_still_runs() {
    let site = Site::new();
    let server = site.start();
    lose(&site);
    let refused = adopt(&site, &APPLY);
    assert!(refused.code == Some(2) && refused.why.contains("next: stop it"), "{refused:?}");
    server.kill();
    adopt(&site, &APPLY).with_code(0);
}

/// Goal: transfers in progress at the loss of the log are listed, and decided by PostgreSQL's
/// proof; nothing is lost and nothing moves twice. Method: transfers blocked in each state that
/// waits for Spot, killed, log lost.
#[test]
fn f07_what_was_under_way_is_listed_and_decided() {
    let site = Site::new();
    let server = site.start();
    for user in USERS {
        server.deposit(user, "USDT", "100");
        assert_eq!(server.transfer_ended(user, Way::ToSpot, "50").status, 200);
    }
    site.wait_for_rest();
    // The final write never reaches PostgreSQL: the client may know COMMITTED already.
    let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state IN (40, 20, -10)");
    let mut held = Vec::new();
    for (index, user) in USERS.into_iter().enumerate() {
        let way = Way::BOTH[index % 2];
        let body = way.body_with_cid("USDT", "7", &format!("held-{user}"));
        held.push((user, body.clone(), server.post_held(&site, user, &body)));
    }
    site.wait_for_held();
    // The first one's client may know COMMITTED already: the money still arrives.
    server.set_status(USERS[0], "SPOT", "DISABLED");
    server.kill();
    drop(hold);
    let hidden = "SELECT count(*) FROM transfers WHERE state NOT IN (40, -10, -30)";
    site.wait_for_disconnected();
    // The server's last statement may have ended without it.
    let state = |req_id: &str| {
        site.sql_value(&format!("SELECT state FROM transfers WHERE req_id = '{req_id}'"))
    };
    let stays: Vec<bool> = held.iter().map(|(_, _, req_id)| state(req_id) == "10").collect();
    let open: usize = site.sql_value(hidden).parse().expect("a number");
    lose(&site);
    let planned = adopt(&site, &PLAN).with_code(0);
    assert_eq!(planned.matches("open     transfer ").count(), open, "{planned}");
    let done = adopt(&site, &APPLY).with_code(0);
    assert!(done.contains(&format!("open={open} left=0\n")), "{done}");
    let server = site.start();
    assert_eq!(server.resume("rebuilt").status, 200);
    site.wait_for_rest();
    for ((user, body, req_id), stays) in held.iter().zip(&stays) {
        let now = server.post_ended(*user, body);
        // A transfer that had not left Spot, by PostgreSQL's rows, may have been answered as
        // FAILED.
        let status = if *stays { 422 } else { 200 };
        assert_eq!((now.status, &now.req_id()), (status, req_id), "{now:?}");
    }
    for (index, user) in USERS.into_iter().enumerate() {
        let moved = if index % 2 == 0 {
            57
        } else if stays[index] {
            50
        } else {
            43
        };
        let usdt = server.usdt(user);
        assert_eq!(usdt.spot, Some(moved * crate::harness::COIN), "{usdt:?}");
    }
    site.assert_in_order(&server);
}

/// Goal: an open credit that finds no place while the log is rebuilt is left to the service, which
/// has places again. Method: as many users as the tables of the rebuild hold, a held transfer of
/// one more; killed, log lost, rebuilt with those tables, started with larger ones.
#[test]
fn f07_an_open_credit_without_a_place_waits_for_the_service() {
    const PLACES: u64 = 64;
    const LATE: u64 = 6_000;
    let site = Site::new();
    let server = site.start();
    for user in 5_000..5_000 + PLACES {
        server.deposit(user, "USDT", "10");
        assert_eq!(server.transfer_ended(user, Way::ToSpot, "10").status, 200);
    }
    server.deposit(LATE, "USDT", "10");
    site.wait_for_rest();
    let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state IN (40, 20, -10)");
    let body = Way::ToSpot.body_with_cid("USDT", "10", "late");
    let req_id = server.post_held(&site, LATE, &body);
    site.wait_for_held();
    server.kill();
    // The held statement must not be carried out after all.
    site.cut_connections();
    site.wait_for_disconnected();
    drop(hold);
    lose(&site);
    let small = site.clone().with("UBSCORE__ENGINE__ACCOUNTS_MAX", PLACES);
    let planned = adopt(&small, &PLAN).with_code(0);
    // Of an open credit that is planned, the plan says that UBSCore is asked for it.
    assert!(!planned.contains("ask UBSCore for its "), "{planned}");
    let done = adopt(&small, &APPLY).with_code(0);
    assert!(done.contains("open=1 left=0\n"), "{done}");
    let server = site.start();
    assert_eq!(server.resume("rebuilt").status, 200);
    site.wait_for_rest();
    let now = server.post_ended(LATE, &body);
    assert_eq!((now.status, now.req_id()), (200, req_id), "{now:?}");
    assert_eq!(server.usdt(LATE).spot, Some(10 * crate::harness::COIN));
    site.assert_in_order(&server);
}

/// Goal: a rebuild needs two people if a repair does.
#[test]
fn f07_a_rebuild_needs_two_people_where_a_repair_does() {
    let site = Site::new().with("UBSCORE__APPROVAL__REQUIRED", "repair");
    site.start().stop();
    lose(&site);
    let file = |name: &str, user: u64| {
        let path = site.data_dir.join(name);
        fs::write(&path, token(user, Some(Role::Admin))).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let (one, other) = (file("one", 5), file("other", 6));
    let alone = adopt(&site, &APPLY);
    assert!(alone.code == Some(2) && alone.why.contains("approval.required"), "{alone:?}");
    let twice = ["--token-file", &one, "--approver-token-file", &one];
    let twice = adopt(&site, &[&APPLY[..], &twice].concat());
    assert!(twice.code == Some(2) && twice.why.contains("another admin"), "{twice:?}");
    let both = ["--token-file", &one, "--approver-token-file", &other];
    adopt(&site, &[&APPLY[..], &both].concat()).with_code(0);
    let actor = "SELECT actor FROM admin_audit WHERE action = 'cut'";
    assert_eq!(site.sql(actor), [["ubscore engine adopt by admin/5, approved by admin/6"]]);
}
