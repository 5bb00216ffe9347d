//! A log damaged beyond repair: every record given up is named, nothing else is lost, and the
//! records that PostgreSQL proves come back.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::harness::{
    Balance, COIN, Reply, Server, Site, Way, assert_kept, assert_refused, crowd, endow, eventually,
    force, forgetful, plan, post_to, snapshots, wait_for_all_below,
};

const USERS: [u64; 3] = [1001, 1002, 1003];
const REASON: &str = "the disk is gone";

/// A command of the binary on a site's PostgreSQL; its exit code and output.
fn ubscore(site: &Site, environment: &[(&str, &str)], words: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(words);
    command.envs(site.verify().get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Done { code: status.code(), out: text(stdout), why: text(stderr) }
}

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

    /// Asserts that it was refused with this text.
    #[track_caller]
    fn refused(self, what: &str) {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.why);
        assert!(self.why.contains(what), "{}", self.why);
    }
}

fn data_dir(site: &Site) -> String {
    site.data_dir.to_str().expect("text").to_owned()
}

/// `ubscore wal repair` with PostgreSQL.
fn wal_repair(site: &Site, environment: &[(&str, &str)], words: &[&str]) -> Done {
    let (url, data_dir) = (site.url(), data_dir(site));
    let words = [&["wal", "repair", &data_dir, "--dev", "--postgres", &url], words].concat();
    ubscore(site, environment, &words)
}

/// `ubscore wal repair` without.
fn wal_repair_alone(site: &Site, words: &[&str]) -> Done {
    ubscore(site, &[], &[&["wal", "repair", &data_dir(site)], words].concat())
}

/// The words that accept a loss.
fn accept(from: u64) -> [String; 4] {
    ["--accept-loss-from".to_owned(), from.to_string(), "--reason".to_owned(), REASON.to_owned()]
}

/// The same for a sound log.
fn accept_sound(from: u64) -> [String; 5] {
    let [accept, from, reason, why] = accept(from);
    [accept, from, reason, why, "--although-sound".to_owned()]
}

fn words<const N: usize>(owned: &[String; N]) -> [&str; N] {
    owned.each_ref().map(String::as_str)
}

/// Every readable record of the log, from `wal dump`.
fn records(site: &Site) -> Vec<Value> {
    let words = ["wal", "dump", &data_dir(site), "--format", "json"];
    let done = ubscore(site, &[], &words);
    done.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn number(record: &Value, field: &str) -> u64 {
    record[field].as_u64().expect("a number")
}

/// Flips a bit of a record.
fn damage(site: &Site, record: &Value) {
    let name = format!("segment-{:016x}.wal", number(record, "segment"));
    let path = site.log_dir().join(name);
    let mut bytes = fs::read(&path).expect("a segment");
    let at = usize::try_from(number(record, "offset") + 30).expect("small");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("written");
}

/// The first DEPOSIT behind a third of the records: its transfer has no other record.
fn middle(records: &[Value]) -> usize {
    let deposited = |record: &Value| {
        (&record["op"], &record["outcome"]) == (&json!("DEPOSIT"), &json!("SUCCESS"))
    };
    let begin = records.len() / 3;
    begin + records[begin..].iter().position(deposited).expect("one")
}

/// Every file of the log and its snapshots.
fn files(site: &Site) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for directory in [site.log_dir(), site.snapshot_dir()] {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
            if name.ends_with(".wal") || name.ends_with(".snap") {
                all.insert(name, fs::read(&path).expect("readable"));
            }
        }
    }
    all
}

/// The directories of copies.
fn copies(site: &Site) -> Vec<PathBuf> {
    let entries = fs::read_dir(&site.data_dir).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_copy = |path: &PathBuf| path.to_string_lossy().contains("/wal-cut-");
    let mut paths: Vec<_> = paths.filter(is_copy).collect();
    paths.sort();
    paths
}

/// Asserts that each file of `before` that a cut has changed is set aside, byte for byte; returns
/// the number of these files.
fn assert_aside(site: &Site, before: &BTreeMap<String, Vec<u8>>) -> usize {
    let now = files(site);
    let aside: BTreeMap<String, Vec<u8>> = copies(site)
        .iter()
        .flat_map(|directory| fs::read_dir(directory).expect("a directory"))
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
            (name, fs::read(path).expect("readable"))
        })
        .collect();
    let changed = before.iter().filter(|(name, bytes)| now.get(*name) != Some(bytes));
    let mut count = 0;
    for (name, bytes) in changed {
        assert!(aside.get(name) == Some(bytes), "{name} is not set aside unchanged");
        count += 1;
    }
    count
}

/// A site's state before a loss.
struct Before {
    answers: Vec<(u64, Value, Reply)>,
    balances: Vec<BTreeMap<String, Balance>>,
    statuses: Vec<Reply>,
}

fn balances(server: &Server) -> Vec<BTreeMap<String, Balance>> {
    USERS.map(|user| server.balances(user)).to_vec()
}

/// One transfer with a cid, with a final answer.
fn post(
    answers: &mut Vec<(u64, Value, Reply)>,
    server: &Server,
    user: u64,
    way: Way,
    amount: &str,
) {
    let body = way.body_with_cid("USDT", amount, &format!("cid-{}", answers.len()));
    let reply = server.post(user, &body);
    assert!([200, 422].contains(&reply.status), "{reply:?}");
    answers.push((user, body, reply));
}

/// Users with a history of each end, both ways, and of changing statuses, over three starts and so
/// as many segments; killed at rest.
fn history(site: &Site) -> Before {
    let mut answers = Vec::new();
    for round in 0..3 {
        let server = site.start();
        let mut post = |user, way, amount: &str| post(&mut answers, &server, user, way, amount);
        for user in USERS {
            server.deposit(user, "USDT", "100");
            post(user, Way::ToSpot, "50.5");
            post(user, Way::ToSpot, "1.25");
            post(user, Way::ToFunding, "20");
            post(user, Way::ToFunding, "99999");
            post(user, Way::ToSpot, "99999");
            if round == 1 {
                server.set_status(user, "SPOT", "DISABLED");
                post(user, Way::ToSpot, "4");
                post(user, Way::ToFunding, "1");
                server.set_status(user, "SPOT", "ACTIVE");
                server.set_status(user, "FUNDING", "DISABLED");
                post(user, Way::ToFunding, "5");
                server.set_status(user, "FUNDING", "ACTIVE");
                server.set_status(user, "SPOT", "FROZEN");
                post(user, Way::ToFunding, "2");
                server.set_status(user, "SPOT", "ACTIVE");
            }
            post(user, Way::ToFunding, "0.75");
        }
        site.wait_for_rest();
        server.kill();
    }
    let server = site.start();
    // A status that is in force when it is lost.
    server.set_status(USERS[2], "SPOT", "FROZEN");
    let balances = balances(&server);
    let statuses = vec![server.transfer(USERS[2], Way::ToFunding, "1")];
    site.wait_for_rest();
    server.kill();
    Before { answers, balances, statuses }
}

/// Starts halted, resumes, and asserts that everything is as before, and continues.
fn assert_as_before(site: &Site, before: &Before) {
    site.assert_verified();
    let server = site.start();
    assert_eq!(server.ready(), 503, "it is halted");
    let resumed = server.resume("repaired");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    site.wait_for_rest();
    assert_eq!(balances(&server), before.balances);
    for (user, body, first) in &before.answers {
        let now = server.post(*user, body);
        assert_eq!((now.status, now.req_id()), (first.status, first.req_id()), "{now:?}");
        assert_eq!(now.json()["state"], first.json()["state"], "{now:?}");
        assert_eq!(now.json()["code"], first.json()["code"], "{now:?}");
    }
    for status in &before.statuses {
        let now = server.transfer(USERS[2], Way::ToFunding, "1");
        assert_eq!(now.refusal(), status.refusal());
    }
    assert_eq!(balances(&server), before.balances);
    for way in Way::BOTH {
        let reply = server.transfer(USERS[0], way, "1");
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

/// A copy of a site in its state; no connection may be open.
fn twin(site: &Site) -> Site {
    let copy = site.with_copied_database().with_fresh_data_dir();
    site.copy_data(&copy);
    copy
}

const PLAN: [&str; 1] = ["--plan"];
const APPLY: [&str; 3] = ["--apply", "--reason", REASON];

/// `ubscore repair`.
fn repair(site: &Site, environment: &[(&str, &str)], words: &[&str]) -> Done {
    let (url, data_dir) = (site.url(), data_dir(site));
    let place = ["--dev", "--postgres", &url, "--data-dir", &data_dir];
    ubscore(site, environment, &[&["repair"], words, &place].concat())
}

/// Goal: a damaged log is given up from the first bad record on and no further, after every lost
/// record has been named and copied. No start succeeds before. The records that PostgreSQL proves
/// come back: every balance, every answer. Method: the history above, one bit of a record in the
/// middle, and every step of the way.
#[test]
fn what_a_cut_takes_is_named_and_comes_back_from_postgresql() {
    let site = Site::new();
    let before = history(&site);
    let records = records(&site);
    let place = middle(&records);
    let bad = &records[place];
    let from = number(bad, "sequence");
    damage(&site, bad);
    let damaged = files(&site);
    let (code, said) = site.start_refused();
    assert!(code == 70 && said.contains("damaged at"), "{said}");

    let plan = wal_repair(&site, &[], &[]).with_code(1);
    assert!(plan.contains(&format!("damaged  from record {from} on: ")), "{plan}");
    for record in &records[place + 1..] {
        let sequence = format!("lost     {} ", number(record, "sequence"));
        assert!(plan.contains(&sequence), "{sequence}: {plan}");
    }
    let gone = bad["req_id"].as_str().expect("an order");
    let word = format!("gone     transfer {gone}");
    assert!(plan.lines().any(|line| line.starts_with(&word)), "{plan}");
    assert!(plan.contains("; in PostgreSQL COMMITTED, record "), "{plan}");
    assert!(plan.contains("in PostgreSQL FAILED INSUFFICIENT_BALANCE, record "), "{plan}");
    assert!(plan.contains("users    1001 1002 1003\n"), "{plan}");
    let alone = wal_repair_alone(&site, &[]).with_code(1);
    assert!(alone.contains("PostgreSQL was not asked"), "{alone}");
    assert!(!alone.contains("in PostgreSQL"), "{alone}");
    assert_eq!((files(&site), copies(&site).len()), (damaged.clone(), 0), "a plan changes nothing");

    let cut = accept(from);
    let done = wal_repair(&site, &[], &words(&cut)).with_code(0);
    assert!(
        done.contains(&plan[plan.find("kept").expect("kept")..plan.find("next ").expect("next")])
    );
    assert!(assert_aside(&site, &damaged) > 1, "{done}");
    let note =
        "SELECT reason FROM admin_audit WHERE actor = 'ubscore wal repair' AND action = 'cut'";
    assert_eq!(site.sql(note), [[REASON]]);
    let again = wal_repair(&site, &[], &[]).with_code(0);
    assert!(again.contains("nothing to cut"), "{again}");

    // It starts, and is halted, and stays so.
    let server = site.start();
    assert_eq!(server.ready(), 503);
    server.says("the log was cut from record");
    let resumed = server.resume("hope");
    assert_eq!(resumed.status, 503, "{resumed:?}");
    server.kill();

    let planned = repair(&site, &[], &PLAN).with_code(0);
    assert!(planned.contains("would ") && planned.ends_with(" left=0\n"), "{planned}");
    let done = repair(&site, &[], &APPLY).with_code(0);
    assert_eq!(done.replace("done  ", "would ").replace("repaired", "planned"), planned);
    let planned = repair(&site, &[], &PLAN).with_code(0);
    assert_eq!(planned, "planned transfers=0 left=0\n");
    assert_as_before(&site, &before);
}

/// Goal: wrong arguments change nothing. Method: every wrong way to call, on a damaged log and on a
/// sound one.
#[test]
fn a_cut_is_refused_where_it_is_not_given_exactly() {
    let site = Site::new();
    let server = site.start();
    for _ in 0..20 {
        assert_eq!(server.transfer(USERS[0], Way::ToSpot, "1").status, 200);
    }
    site.wait_for_rest();
    // While the service runs, the log is only read.
    wal_repair(&site, &[], &[]).with_code(0);
    let cut = accept(9);
    wal_repair(&site, &[], &words(&cut)).refused(&server.pid().to_string());
    wal_repair_alone(&site, &words(&cut)).refused(&server.pid().to_string());
    server.kill();
    let whole = files(&site);
    let state = site.sql("SELECT * FROM engine_state");
    let last = number(records(&site).last().expect("records"), "sequence");
    let sound = wal_repair(&site, &[], &[]).with_code(0);
    assert!(sound.contains("nothing to cut"), "{sound}");
    // Once more, after the service has continued: it would remove the newer records.
    wal_repair(&site, &[], &words(&cut)).refused("nothing is wrong with the records 9 to ");
    // Behind the last record there is nothing to cut.
    wal_repair(&site, &[], &words(&accept(last + 1))).with_code(0);
    wal_repair(&site, &[], &words(&accept(last + 2))).refused(&format!("is {}", last + 1));
    damage(&site, &records(&site)[10]);
    let damaged = files(&site);
    wal_repair(&site, &[], &words(&accept(12))).refused("the first record that is gone is 11");
    wal_repair_alone(&site, &words(&accept(12))).refused("the first record that is gone is 11");
    wal_repair(&site, &[], &["--accept-loss-from", "11"]).refused("--reason");
    wal_repair(&site, &[], &["--accept-loss-from", "0", "--reason", "x"]).refused("0");
    wal_repair(&site, &[], &["--reason", "x"]).refused("--accept-loss-from");
    // Another database than the log's.
    let other = site.with_fresh_database();
    other.with_fresh_data_dir().start().stop();
    wal_repair(&other, &[], &words(&accept(11))).refused("not a pair");
    assert_eq!(files(&site), damaged);
    assert_ne!(damaged, whole);
    assert_eq!(site.sql("SELECT * FROM engine_state"), state);
    assert_eq!(copies(&site), Vec::<PathBuf>::new());
}

/// Brings a cut site back, and asserts that everything is as before.
fn bring_back(site: &Site, before: &Before) {
    let done = repair(site, &[], &APPLY).with_code(0);
    assert!(done.ends_with(" left=0\n"), "{done}");
    assert_as_before(site, before);
}

/// Goal: damage at the very end, which only PostgreSQL's claim reveals, is given up as well.
/// Method: the last record that PostgreSQL claims, damaged with everything behind it; the files
/// first, without PostgreSQL, and then the same with it.
#[test]
fn the_last_batch_is_cut_by_the_files_first_and_postgresql_afterwards() {
    let site = Site::new();
    let before = history(&site);
    let claimed = "SELECT max(durable) FROM journal_last";
    let claimed: u64 = site.sql_value(claimed).parse().expect("a number");
    for record in records(&site).iter().filter(|record| number(record, "sequence") >= claimed) {
        damage(&site, record);
    }
    let damaged = files(&site);
    // The log alone looks like after a crash.
    let alone = wal_repair_alone(&site, &[]).with_code(0);
    assert!(alone.contains("torn ") && alone.contains("nothing to cut"), "{alone}");
    assert_eq!(site.start_refused().0, 70);
    let plan = wal_repair(&site, &[], &[]).with_code(1);
    assert!(plan.contains(&format!("PostgreSQL knows record {claimed}")), "{plan}");

    let cut = accept(claimed);
    let done = wal_repair_alone(&site, &words(&cut)).with_code(1);
    assert!(done.contains("PostgreSQL has not recorded the cut yet"), "{done}");
    assert_eq!(assert_aside(&site, &damaged), 1);
    for refused in [site.start_refused().1, repair(&site, &[], &APPLY).why] {
        let said = format!("the log is being cut from record {claimed} on");
        assert!(refused.contains(&said), "{refused}");
    }
    wal_repair(&site, &[], &words(&accept(claimed - 1))).refused("is not finished");
    let half = files(&site);
    wal_repair(&site, &[], &words(&cut)).with_code(0);
    assert_eq!((files(&site), copies(&site).len()), (half, 1), "PostgreSQL's half only");
    wal_repair(&site, &[], &words(&cut)).with_code(0);
    let notes = "SELECT count(*) FROM admin_audit WHERE action = 'cut'";
    assert_eq!(site.sql_value(notes), "1", "there was nothing left to do");
    bring_back(&site, &before);
}

/// Goal: a sound log is cut at the named record, and at its very first record as well. Method:
/// both, without any damage.
#[test]
fn a_whole_log_is_cut_at_any_record_that_is_named() {
    let site = Site::new();
    let before = history(&site);
    let records = records(&site);
    for from in [1, 2, number(&records[middle(&records)], "sequence")] {
        let site = twin(&site);
        let whole = files(&site);
        let done = wal_repair(&site, &[], &words(&accept_sound(from))).with_code(0);
        assert!(done.contains(&format!("readable={}", records.len() as u64 - from + 1)), "{done}");
        assert!(assert_aside(&site, &whole) > 1);
        bring_back(&site, &before);
    }
}

/// Goal: snapshots ahead of a cut are set aside with it, a start begins with one before it, and
/// without one nothing is cut. Method: a log without its beginning, with two snapshots; cut behind
/// both, between them, and before both.
#[test]
fn snapshots_ahead_of_a_cut_go_and_one_before_it_is_needed() {
    let site = Site::new().with("UBSCORE__SNAPSHOT__KEEP", 2);
    let server = site.start();
    let mut answers = Vec::new();
    let mut snapshot = |server: &Server| {
        for user in USERS {
            server.deposit(user, "USDT", "100");
            post(&mut answers, server, user, Way::ToSpot, "10");
            post(&mut answers, server, user, Way::ToFunding, "3");
        }
        site.wait_for_rest();
        force(&site, server);
    };
    snapshot(&server);
    snapshot(&server);
    server.kill();
    let server = site.start();
    snapshot(&server);
    for user in USERS {
        post(&mut answers, &server, user, Way::ToSpot, "2");
    }
    site.wait_for_rest();
    // The oldest of three is removed a moment after the newest has its name.
    eventually("two snapshots", || (snapshots(&site).len() == 2).then_some(()));
    let before = Before { answers, balances: balances(&server), statuses: Vec::new() };
    server.kill();
    let stands: Vec<u64> = snapshots(&site).iter().map(|(sequence, _)| *sequence).collect();
    let [newer, older] = stands[..] else { panic!("{stands:?}") };
    assert_eq!(number(&records(&site)[0], "sequence"), 1);
    for (from, ahead) in [(newer + 1, 0), (newer, 1), (older + 1, 1), (older, 2)] {
        let site = twin(&site);
        let whole = files(&site);
        wal_repair(&site, &[], &words(&accept_sound(from))).with_code(0);
        assert_eq!(snapshots(&site).len(), 2 - ahead, "cut at {from}");
        assert_aside(&site, &whole);
        bring_back(&site, &before);
    }
    // Damage that a snapshot covers costs nothing; without its beginning the log needs a snapshot.
    let covered = twin(&site);
    damage(&covered, &records(&covered)[2]);
    let plan = wal_repair(&covered, &[], &[]).with_code(0);
    assert!(plan.contains("covered ") && plan.contains("nothing to cut"), "{plan}");
    let bare = twin(&site);
    fs::remove_file(bare.log_dir().join("segment-0000000000000001.wal")).expect("removed");
    let untouched = files(&bare);
    let begins = number(&records(&bare)[0], "sequence");
    assert!(older < begins && begins <= newer, "{older} {begins} {newer}");
    wal_repair(&bare, &[], &words(&accept_sound(newer)))
        .refused("nothing would be left to begin with");
    assert_eq!((files(&bare), copies(&bare).len()), (untouched, 0));
    wal_repair(&bare, &[], &words(&accept_sound(newer + 1))).with_code(0);
    bring_back(&bare, &before);
}

/// Goal: a status that only the log had is not forgotten. Method: the record that has frozen an
/// account is cut, which no sum shows; a start with a refused resume; the repair, without another
/// step; the next start continues, and the account is frozen.
#[test]
fn a_cut_that_has_lost_a_status_alone_is_not_resumed_before_its_repair() {
    let site = Site::new();
    let server = site.start();
    server.transfer_accepted(USERS[0], Way::ToSpot, "5");
    site.wait_for_rest();
    server.set_status(USERS[0], "SPOT", "FROZEN");
    server.kill();
    let records = records(&site);
    let status = records.iter().rfind(|record| record["kind"] == "STATUS").expect("a status");
    wal_repair(&site, &[], &words(&accept_sound(number(status, "sequence")))).with_code(0);
    let server = site.start();
    let resume = |server: &Server| server.resume("it looks well");
    assert_refused(&resume(&server), 503, "SERVICE_HALTED");
    server.stop();
    repair(&site, &[], &APPLY).with_code(0);
    let server = site.start();
    assert_eq!(resume(&server).status, 200);
    let refused = server.transfer(USERS[0], Way::ToFunding, "1");
    assert_eq!(refused.refusal(), (422, "ACCOUNT_FROZEN".to_owned()));
}

/// Story: a database repair after a cut, at any later time, set statuses again that PostgreSQL
/// remembered from the time of the cut, over an operator's later ones.
#[test]
fn a_status_that_is_set_after_a_repair_stands() {
    let site = Site::new();
    let before = history(&site);
    wal_repair(&site, &[], &words(&accept_sound(2))).with_code(0);
    bring_back(&site, &before);
    let older = site.with_copied_database();
    let server = site.start();
    server.set_status(USERS[1], "SPOT", "FROZEN");
    server.transfer(USERS[0], Way::ToSpot, "1");
    site.wait_for_rest();
    server.kill();
    repair(&older, &[], &APPLY).with_code(0);
    let records = records(&older);
    let of_user = |record: &&Value| record["kind"] == "STATUS" && record["user"] == USERS[1];
    assert_eq!(records.iter().rfind(of_user).expect("a status")["status"], "FROZEN");
}

/// Goal: a claim of PostgreSQL that UBSCore cannot repeat is left and named, with everything else
/// on that balance, and the rest comes back. Method: the lost DEPOSIT of a transfer that PostgreSQL
/// has lost as well; its money was withdrawn.
#[test]
fn what_cannot_be_decided_again_is_left_with_all_on_its_balance() {
    let site = Site::new();
    let server = site.start();
    let [one, other, _] = USERS;
    for user in [one, other] {
        assert_eq!(server.transfer(user, Way::ToSpot, "5").status, 200);
    }
    site.wait_for_rest();
    let kept = number(records(&site).last().expect("records"), "sequence");
    let big = server.transfer(one, Way::ToSpot, "100").req_id();
    for user in [one, other] {
        assert_eq!(server.transfer(user, Way::ToFunding, "4").status, 200);
    }
    let spent = server.transfer(one, Way::ToFunding, "50").req_id();
    site.wait_for_rest();
    server.kill();
    wal_repair(&site, &[], &words(&accept_sound(kept + 1))).with_code(0);
    site.sql(&format!(
        "SET session_replication_role = replica; \
         UPDATE transfers_tb SET funding_code = 22 WHERE req_id = ulid_uuid('{big}')"
    ));
    let planned = repair(&site, &[], &PLAN).with_code(1);
    let line = |text: &str, word: &str, what: &str, why: &str| {
        let named =
            |line: &&str| line.starts_with(word) && line.contains(what) && line.contains(why);
        assert_eq!(text.lines().filter(named).count(), 1, "{word} {what} {why}: {text}");
    };
    line(&planned, "left ", &big, "does not add up");
    line(&planned, "left ", &spent, "does not add up");
    // With the account's sums in order only the transfer itself contradicts.
    site.sql(&format!(
        "SET session_replication_role = replica; \
         UPDATE balances_tb SET available = available + 100e8 WHERE user_id = {one} AND asset_id = 3; \
         INSERT INTO audit_totals AS t VALUES ({one}, 3, 100e8, 0) \
         ON CONFLICT (user_id, asset_id) DO UPDATE SET journal = t.journal + 100e8"
    ));
    for words in [&PLAN[..], &APPLY] {
        let said = repair(&site, &[], words).with_code(1);
        line(&said, "left ", &big, "PostgreSQL contradicts itself");
        line(&said, "left ", &spent, "insufficient Spot balance");
        let again = said.lines().filter(|line| line.contains("decided again, as SUCCESS"));
        assert_eq!(
            again.filter(|line| line.contains(&format!("user {other}"))).count(),
            1,
            "{said}"
        );
        assert!(
            !said.contains("would    transfer")
                || !said.contains(&format!("user {one}, USDT: have"))
        );
    }
    let spot = records(&site);
    let of_spot = spot.iter().filter(|record| record["kind"] != "EXTERN");
    let ours = of_spot.filter(|record| record["user"] == json!(one));
    assert_eq!(ours.count(), 1, "nothing of it was written");
    let server = site.start();
    let resumed = server.resume("hope");
    assert_eq!(resumed.status, 503, "{resumed:?}");
    assert_eq!(server.usdt(other), Balance::at_rest(9_999 * COIN, COIN));
}

/// Goal: a cut that is killed anywhere is finished by the same command; meanwhile a start finds
/// only the old log or the wanted one, and nothing more is lost. Method: SIGKILL at each point and
/// before each step on the log's directory; then a start, the command again, and the way back.
#[cfg(feature = "crash")]
#[test]
fn a_cut_that_is_killed_anywhere_is_finished_by_the_same_command() {
    let origin = Site::new();
    let before = history(&origin);
    let records = records(&origin);
    let bad = &records[middle(&records)];
    damage(&origin, bad);
    let cut = accept(number(bad, "sequence"));
    let points =
        ubscore::crash::CUT_POINTS.iter().map(|point| ("UBSCORE_CRASH", (*point).to_owned()));
    // As often as the cut does each: two segments are removed, and one is exchanged.
    let steps = [
        ("create", 2),
        ("fill", 2),
        ("sync", 2),
        ("rename", 2),
        ("remove", 3),
        ("sync_directory", 6),
    ];
    let steps = steps.iter().flat_map(|(step, visits)| {
        (1..=*visits).map(move |visit| ("UBSCORE_FAULT", format!("{step}:kill@{visit}")))
    });
    for (index, (name, value)) in points.chain(steps).enumerate() {
        let site = twin(&origin);
        let damaged = files(&site);
        let done = wal_repair(&site, &[(name, &value)], &words(&cut));
        assert_eq!(done.code, None, "{value}: {done:?}");
        let started = match Server::try_start(site.command()) {
            // Only the sync after the mark's removal was missing.
            Ok(server) => {
                assert_eq!(server.ready(), 503, "{value}");
                server.kill();
                true
            }
            Err((status, said)) => {
                let refusals = ["damaged at", "the log is being cut"];
                let refused = refusals.iter().any(|what| said.contains(what));
                assert!(status.code() == Some(70) && refused, "{value}: {said}");
                false
            }
        };
        let finished = wal_repair(&site, &[], &words(&cut));
        // The start has recorded the external operations again. The same cut would give these
        // records up.
        match started && finished.code == Some(2) {
            true => finished.refused("nothing is wrong with the records"),
            false => drop(finished.with_code(0)),
        }
        assert_aside(&site, &damaged);
        let again = wal_repair(&site, &[], &[]).with_code(0);
        assert!(again.contains("nothing to cut"), "{value}: {again}");
        // Every way back is the same; some of them are gone.
        if index % 5 == 0 {
            bring_back(&site, &before);
        }
    }
}

/// Goal: a repair that is killed anywhere continues from there. Method: SIGKILL at each of its
/// points, before the first, the second, a middle and the last step; then the same again.
#[cfg(feature = "crash")]
#[test]
fn a_repair_after_a_cut_that_is_killed_anywhere_goes_on() {
    let origin = Site::new();
    let before = history(&origin);
    let records = records(&origin);
    let bad = &records[middle(&records)];
    damage(&origin, bad);
    wal_repair(&origin, &[], &words(&accept(number(bad, "sequence")))).with_code(0);
    let planned = repair(&origin, &[], &PLAN).with_code(0);
    let steps = planned.matches("would ").count();
    let points = ubscore::crash::REPAIR_POINTS.iter();
    let points = points.map(|point| (*point).to_owned());
    let visits = [2, steps / 2, steps].map(|visit| format!("repair_before_step={visit}"));
    for point in points.chain(visits) {
        let site = twin(&origin);
        let done = repair(&site, &[("UBSCORE_CRASH", &point)], &APPLY);
        assert_eq!(done.code, None, "{point}: {done:?}");
        bring_back(&site, &before);
    }
}

/// Goal: transfers in progress at the loss of the log are not lost, and no answer changes. Method:
/// 200 transfers of four users at once, SIGKILL among them, a bit of a record early or late in the
/// log; cut, repair, resume; every cid again.
#[test]
fn a_cut_amid_a_load_loses_nothing_that_was_answered() {
    for (fuse, part) in [(true, 4), (false, 2), (true, 1)] {
        let site = Site::fused(fuse).with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16);
        let server = site.start();
        endow(&site, &server);
        let plan = plan(200);
        let answered = Mutex::new(0);
        let http = server.http;
        let running = Mutex::new(Some(server));
        let replies = crowd(plan.len(), |index| {
            let reply = post_to(http, &plan[index]);
            let mut answered = answered.lock().expect("not poisoned");
            *answered += 1;
            if *answered == 120 {
                running.lock().expect("not poisoned").take().expect("once").kill();
            }
            reply
        });
        let records = records(&site);
        let bad = &records[(records.len() - 1) * 2 / (part + 2)];
        damage(&site, bad);
        let from = number(bad, "sequence");
        let done = wal_repair(&site, &[], &words(&accept_sound(from))).with_code(0);
        assert!(done.contains(&format!("lost from={from} ")), "{done}");
        let done = repair(&site, &[], &APPLY).with_code(0);
        assert!(done.ends_with(" left=0\n"), "{done}");
        let server = site.start();
        let resumed = server.resume("repaired");
        assert_eq!(resumed.status, 200, "{resumed:?}");
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &replies);
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: records that a cut takes from below PostgreSQL's watermark come back too, as long as the
/// log's own watermark has not passed them. Method: forgotten transfers, with the log cut before
/// the record of its watermark.
#[test]
fn what_lay_below_the_watermark_comes_back_with_its_sums() {
    let site = forgetful(Site::new());
    let server = site.start();
    let mut answers = Vec::new();
    for user in USERS {
        post(&mut answers, &server, user, Way::ToSpot, "10");
    }
    site.wait_for_rest();
    let kept = number(records(&site).last().expect("records"), "sequence");
    for user in USERS {
        post(&mut answers, &server, user, Way::ToSpot, "5");
        post(&mut answers, &server, user, Way::ToFunding, "3");
    }
    site.wait_for_rest();
    wait_for_all_below(&site);
    let before = Before { answers, balances: balances(&server), statuses: Vec::new() };
    server.kill();
    let marks = records(&site);
    let raised = marks.iter().filter(|record| record["kind"] == json!("WMARK"));
    let first = raised.map(|record| number(record, "sequence")).min().expect("raised");
    let from = first.min(kept + 1);
    wal_repair(&site, &[], &words(&accept_sound(from))).with_code(0);
    let planned = repair(&site, &[], &PLAN).with_code(0);
    assert!(planned.contains("decided again"), "{planned}");
    bring_back(&site, &before);
}
