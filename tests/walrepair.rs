//! A log that is damaged beyond mending: what is given up is named, nothing else is lost, and what PostgreSQL proves comes
//! back.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Balance, Reply, Server, Site, Way, copy_files};

const USERS: [u64; 3] = [1001, 1002, 1003];
const REASON: &str = "the disk is gone";

/// A command of the binary on a site's PostgreSQL; its exit code and what it has written.
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
    /// None where it was killed.
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

    /// Asserts that it was refused, saying so.
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

fn words(owned: &[String; 4]) -> [&str; 4] {
    owned.each_ref().map(String::as_str)
}

/// Every record of the log that can be read, as `wal dump` has it.
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
    let at = usize::try_from(number(record, "offset") + 50).expect("small");
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

/// Asserts that what a cut has changed of `before` stands aside, byte for byte, and returns how many files that are.
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
        assert!(aside.get(name) == Some(bytes), "{name} is not aside as it was");
        count += 1;
    }
    count
}

/// What a site was before it lost something.
struct Before {
    told: Vec<(u64, Value, Reply)>,
    balances: Vec<BTreeMap<String, Balance>>,
    statuses: Vec<Reply>,
}

fn balances(server: &Server) -> Vec<BTreeMap<String, Balance>> {
    USERS.map(|user| server.balances(user)).to_vec()
}

/// One transfer with a cid, whose answer must be final.
fn post(told: &mut Vec<(u64, Value, Reply)>, server: &Server, user: u64, way: Way, amount: &str) {
    let body = way.body_with_cid("USDT", amount, &format!("cid-{}", told.len()));
    let reply = server.post(user, &body);
    assert!([200, 422].contains(&reply.status), "{reply:?}");
    told.push((user, body, reply));
}

/// Users with a history of each end, both ways, and of statuses that came and went, over three starts and so as many
/// segments; killed at rest.
fn history(site: &Site) -> Before {
    let mut told = Vec::new();
    for round in 0..3 {
        let server = site.start();
        let mut post = |user, way, amount: &str| post(&mut told, &server, user, way, amount);
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
    Before { told, balances, statuses }
}

/// Starts halted, resumes, and asserts that everything is as it was, and goes on.
fn assert_as_before(site: &Site, before: &Before) {
    site.assert_verified();
    let server = site.start();
    assert_eq!(server.ready(), 503, "it is halted");
    let resumed = server.admin("POST", "/admin/v1/resume", &json!({ "reason": "repaired" }));
    assert_eq!(resumed.status, 200, "{resumed:?}");
    site.wait_for_rest();
    assert_eq!(balances(&server), before.balances);
    for (user, body, told) in &before.told {
        let now = server.post(*user, body);
        assert_eq!((now.status, now.req_id()), (told.status, told.req_id()), "{now:?}");
        assert_eq!(now.json()["state"], told.json()["state"], "{now:?}");
        assert_eq!(now.json()["code"], told.json()["code"], "{now:?}");
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
    site.assert_books(&server);
    server.stop();
    // Without what the first start still had in memory.
    let server = site.start();
    assert_eq!(server.ready(), 200);
    assert_eq!(balances(&server), before.balances);
    site.assert_books(&server);
    server.stop();
}

/// A copy of a site in the state it is in, which nobody may be connected to.
fn twin(site: &Site) -> Site {
    let copy = site.with_copied_database().with_fresh_data_dir();
    copy_files(&site.log_dir(), &copy.log_dir());
    copy_files(&site.snapshot_dir(), &copy.snapshot_dir());
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

/// Goal: a damaged log is given up from the first bad record on and no further, after everything that goes has been named and
/// copied; nothing starts before; and what PostgreSQL proves comes back: every balance, every answer. Method: the history above,
/// one bit of a record in the middle, and every step of the way.
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
    assert!(code == 1 && said.contains("damaged at"), "{said}");

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
    assert!(alone.contains("what PostgreSQL knows was not asked"), "{alone}");
    assert!(!alone.contains("in PostgreSQL"), "{alone}");
    assert_eq!((files(&site), copies(&site).len()), (damaged.clone(), 0), "a plan changes nothing");

    let cut = accept(from);
    let done = wal_repair(&site, &[], &words(&cut)).with_code(0);
    assert!(
        done.contains(&plan[plan.find("kept").expect("kept")..plan.find("to give").expect("to")])
    );
    assert!(assert_aside(&site, &damaged) > 1, "{done}");
    let note =
        "SELECT reason FROM admin_audit WHERE actor = 'ubscore wal repair' AND action = 'cut'";
    assert_eq!(site.sql(note), [[REASON]]);
    let again = wal_repair(&site, &[], &[]).with_code(0);
    assert!(again.contains("nothing is to be given up"), "{again}");

    // It starts, and is halted, and stays so.
    let server = site.start();
    assert_eq!(server.ready(), 503);
    assert!(server.said().contains("the log was cut from record"), "{}", server.said());
    let resumed = server.admin("POST", "/admin/v1/resume", &json!({ "reason": "hope" }));
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

/// Goal: what is told wrong changes nothing. Method: every wrong way to ask, on a damaged log and on a whole one.
#[test]
fn a_cut_is_refused_where_it_is_not_told_exactly() {
    let site = Site::new();
    let server = site.start();
    for _ in 0..20 {
        assert_eq!(server.transfer(USERS[0], Way::ToSpot, "1").status, 200);
    }
    site.wait_for_rest();
    // While the service runs it is looked at only.
    wal_repair(&site, &[], &[]).with_code(0);
    let cut = accept(9);
    wal_repair(&site, &[], &words(&cut)).refused(&server.pid().to_string());
    wal_repair_alone(&site, &words(&cut)).refused(&server.pid().to_string());
    server.kill();
    let whole = files(&site);
    let state = site.sql("SELECT * FROM engine_state");
    let last = number(records(&site).last().expect("records"), "sequence");
    let sound = wal_repair(&site, &[], &[]).with_code(0);
    assert!(sound.contains("nothing is to be given up"), "{sound}");
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
