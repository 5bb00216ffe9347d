//! The lease of a signer on a real PostgreSQL: one owner, fenced, also if a process is paused, and
//! if the clock steps.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use txm::store::{Acquired, Lease, OtherOwner, SignerOwner, StoreError, TxStore};
use ubscore::postgres::Address;
use ubscore::postgres::txm::store::{NodeStart, TxmStore};

use crate::harness::{LIMITS, block_on, eventually};
use crate::txm_store::{
    Rows, created, first_attempt, name, new_row, node_start, owned, request, signer, written,
};

/// The database of a process that this test starts, by its environment.
const URL: &str = "UBSCORE_TEST_LEASE_URL";
/// Its deed.
const DEED: &str = "UBSCORE_TEST_LEASE_DEED";
/// The advisory lock that processes wait for at their start.
const GATE: i64 = 77;

fn acquired(store: &TxmStore) -> Acquired {
    block_on(store.acquire(signer(1))).expect("an answer")
}

/// The answer for a signer that another process owns.
fn of(node: &str) -> Acquired {
    Acquired::Other(OtherOwner { node: node.to_owned(), url: format!("http://{node}") })
}

fn token(token: u64) -> Acquired {
    Acquired::Mine(Lease { signer: signer(1), token })
}

/// Every fenced call of a process, each with its answer.
fn fenced_calls(store: &TxmStore, lease: Lease) -> Vec<(&'static str, Result<(), StoreError>)> {
    let found = block_on(store.find(signer(1), "r0")).expect("an answer").expect("a row");
    vec![
        ("create", block_on(store.create(lease, 0, &[request("late")])).map(drop)),
        ("number", block_on(store.number(lease, 0, &[])).map(drop)),
        ("write", block_on(store.write(lease, &[first_attempt(&found)])).map(drop)),
        ("suspend", block_on(store.suspend(lease, "X", "late"))),
        ("commanded", block_on(store.commanded(lease, 1, None))),
        ("open", block_on(store.open(lease)).map(drop)),
        ("release", block_on(store.release(lease))),
    ]
}

/// Goal: the table of section 4. Method: each kind of lease, acquired by its owner and by another
/// process.
#[test]
fn lse_001_absent_own_expired_and_foreign() {
    let rows = Rows::new();
    let (a, b) = (rows.node("a"), rows.node("b"));
    let owner = || block_on(b.owner_of(signer(1)));
    assert_eq!(owner(), Ok(SignerOwner::Free));
    assert_eq!(acquired(&a), token(1), "absent");
    let Acquired::Other(of_a) = of("a") else { unreachable!("it is another's") };
    assert_eq!(owner(), Ok(SignerOwner::Node(of_a)));
    assert_eq!(acquired(&a), token(1), "its own, alive");
    assert_eq!(acquired(&b), of("a"), "another's, alive");
    rows.step("9 seconds");
    assert_eq!(block_on(a.renew()), Ok(vec![Lease { signer: signer(1), token: 1 }]));
    rows.step("10 seconds");
    assert_eq!(acquired(&b), of("a"), "expired, within the skew");
    rows.step("1 second");
    assert_eq!(block_on(a.renew()), Ok(Vec::new()), "not alive");
    assert_eq!(owner(), Ok(SignerOwner::Free));
    assert_eq!(acquired(&b), token(2), "expired");
    rows.step("11 seconds");
    assert_eq!(acquired(&b), token(3), "its own, expired");
    let lease = Lease { signer: signer(1), token: 3 };
    assert_eq!(block_on(b.release(lease)), Ok(()));
    assert_eq!(acquired(&a), token(4), "released");
    assert_eq!(block_on(a.acquire(signer(2))), Ok(Acquired::Unknown));
    assert_eq!(block_on(a.owner_of(signer(2))), Ok(SignerOwner::Unknown));
    assert_eq!(rows.site.sql_value("SELECT fencing_token FROM txm.signer_lease"), "4");
}

/// A process of this test binary that does a deed of these tests. Its lines begin with `says`.
fn process(rows: &Rows, deed: &str) -> Child {
    let mut command = Command::new(env::current_exe().expect("this binary"));
    command.args(["--exact", "txm_lease::a_process_of_these_tests", "--nocapture"]);
    command.env(URL, rows.site.url()).env(DEED, deed).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a process")
}

/// The lines that a process said, once it has ended.
fn said(mut child: Child) -> Vec<String> {
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let lines = out.lines().map(|line| line.expect("text"));
    // The first line of a test's output may stand behind its name.
    let lines = lines.filter_map(|line| line.split_once("says ").map(|(_, said)| said.to_owned()));
    let lines = lines.collect();
    child.wait().expect("its end");
    lines
}

/// The deeds of [`process`]. Without its environment it does nothing.
#[test]
fn a_process_of_these_tests() {
    let (Ok(url), Ok(deed)) = (env::var(URL), env::var(DEED)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let target = Address::parse(&url).expect("our own URL");
        let start = node_start(&format!("node-{}", std::process::id()));
        let store = TxmStore::start(&target, &LIMITS, 1, &start).await.expect("a start");
        {
            let client = store.pool().get().await.expect("a connection");
            client.execute("SELECT pg_advisory_lock_shared($1)", &[&GATE]).await.expect("open");
        }
        let lease = match store.acquire(signer(1)).await.expect("an answer") {
            Acquired::Mine(lease) => lease,
            other => return println!("says {other:?}"),
        };
        println!("says mine {}", lease.token);
        if deed != "create" {
            return;
        }
        for number in 0_u64.. {
            let id = format!("{}-{number}", std::process::id());
            match store.create(lease, 0, &[request(&id)]).await {
                Ok(made) => drop(new_row(&made[0])),
                Err(error) => return println!("says {error:?}"),
            }
        }
    });
}

/// Goal: of many processes one becomes the owner. Method: 50 processes that begin at once.
#[test]
fn lse_002_of_fifty_processes_one_is_the_owner() {
    let rows = Rows::new();
    let gate = rows.site.session();
    gate.sql(&format!("SELECT pg_advisory_lock({GATE})"));
    let children: Vec<Child> = (0..50).map(|_| process(&rows, "acquire")).collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("all of them at the gate", || (rows.site.sql_value(waiting) == "50").then_some(()));
    gate.sql(&format!("SELECT pg_advisory_unlock({GATE})"));
    let said: Vec<String> = children.into_iter().flat_map(said).collect();
    assert_eq!(said.len(), 50, "{said:?}");
    assert_eq!(said.iter().filter(|line| *line == "mine 1").count(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|line| line.starts_with("Other")).count(), 49, "{said:?}");
}

/// Goal: nothing of an owner counts behind a take-over. Method: A with token 1 is not heard of,
/// B takes over, and A does everything that an owner can.
#[test]
fn lse_003_every_call_of_a_superseded_owner_is_fenced() {
    let rows = Rows::new();
    let (a, b) = (rows.node("a"), rows.node("b"));
    let lease = owned(&a);
    created(&a, lease, "r0");
    rows.step("12 seconds");
    let next = owned(&b);
    assert_eq!((lease.token, next.token), (1, 2));
    let before = rows.site.sql("SELECT * FROM txm.managed_tx ORDER BY tx_id");
    for (call, answer) in fenced_calls(&a, lease) {
        assert_eq!(answer, Err(StoreError::Fenced { found: Some(2) }), "{call}");
    }
    // Under the successor's token too: the process is another one.
    for (call, answer) in fenced_calls(&a, next) {
        assert_eq!(answer, Err(StoreError::Fenced { found: Some(2) }), "{call}");
    }
    assert_eq!(block_on(a.renew()), Ok(Vec::new()));
    assert_eq!(rows.site.sql("SELECT * FROM txm.managed_tx ORDER BY tx_id"), before);
    assert_eq!(rows.site.sql_value("SELECT count(*) FROM txm.signer_suspensions"), "0");
    let book = block_on(b.open(next)).expect("a book");
    assert!(written(&b, next, first_attempt(&book.txs[0])).is_some());
    assert_eq!(block_on(b.release(next)), Ok(()));
}

/// Goal: a process is no other process, even of one name. Method: a second process with the name of
/// the first, which is paused. With owners compared by name, the fault is seen.
#[test]
fn lse_007_a_process_of_the_same_name_is_a_stranger() {
    let rows = Rows::new();
    let (paused, restarted) = (rows.node("a"), rows.node("a"));
    assert!(restarted.incarnation() > paused.incarnation());
    let lease = owned(&paused);
    created(&paused, lease, "r0");
    assert_eq!(acquired(&restarted), of("a"));
    rows.step("12 seconds");
    assert_eq!(acquired(&restarted), token(2));
    for (call, answer) in fenced_calls(&paused, lease) {
        assert_eq!(answer, Err(StoreError::Fenced { found: Some(2) }), "{call}");
    }
    // The fault that this test is for: a token for each name.
    rows.site.sql(
        "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('txm.acquire'::regproc), \
           'l.owner_incarnation = p_me', 'l.owner_node = me.node_id'); END $do$",
    );
    assert_eq!(acquired(&paused), token(2), "two owners under one token");
}

/// Goal: a clock that steps makes no second writer. Method: PostgreSQL's clock by a minute in both
/// directions while A owns; behind each step, of A and B one at most can write.
#[test]
fn lse_010_a_stepped_clock_makes_no_two_writers() {
    for interval in ["1 minute", "-1 minute"] {
        let rows = Rows::new();
        let (a, b) = (rows.node("a"), rows.node("b"));
        let first = owned(&a);
        created(&a, first, "r0");
        rows.step(interval);
        let second = owned(&b);
        assert_eq!(second.token, 2, "{interval}");
        for (call, answer) in fenced_calls(&a, first) {
            assert_eq!(answer, Err(StoreError::Fenced { found: Some(2) }), "{interval} {call}");
        }
        assert_eq!(created(&b, second, "r1").nonce, Some(1));
        // Back again: the lease of B is far ahead or over, and no process writes under it.
        let back = if interval.starts_with('-') { "1 minute" } else { "-1 minute" };
        rows.step(back);
        let writes = [
            block_on(a.create(first, 0, &[request("x")])),
            block_on(b.create(second, 0, &[request("y")])),
        ];
        assert!(writes.iter().all(Result::is_err), "{interval} {writes:?}");
        assert_eq!(owned(&a).token, 3, "{interval}");
    }
}

/// Goal: a paused process is harmless: it leaves no lock, and nothing of it counts behind the
/// take-over. Method: a process that creates without a pause is stopped by SIGSTOP behind every
/// few rows; B takes over at once, writes, and the process goes on.
#[test]
fn lse_011_a_process_that_is_stopped_amid_its_writes_leaves_no_lock() {
    let rows = Rows::new();
    let b = rows.node("b");
    let count = || rows.site.sql_value("SELECT count(*) FROM txm.managed_tx");
    let count = || count().parse::<usize>().expect("a number");
    for round in 0..4 {
        let before = count();
        let child = process(&rows, "create");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("not 0");
        eventually("rows of the process", || (count() > before + 5 + 3 * round).then_some(()));
        kill_process(pid, Signal::STOP).expect("stopped");
        let locks = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
                     WHERE c.relnamespace = 'txm'::regnamespace AND l.pid <> pg_backend_pid() \
                       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        eventually("the end of the statement that was sent", || {
            (rows.site.sql_value(locks) == "0").then_some(())
        });
        rows.step("12 seconds");
        let lease = owned(&b);
        let mine = created(&b, lease, &format!("b{round}"));
        kill_process(pid, Signal::CONT).expect("continued");
        let said = said(child);
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[1], format!("Fenced {{ found: Some({}) }}", lease.token));
        let last = rows.site.sql_value("SELECT max(nonce) FROM txm.managed_tx");
        assert_eq!(last, mine.nonce.expect("numbered").to_string());
        block_on(b.release(lease)).expect("released");
    }
    let holes = "SELECT count(*), max(nonce) + 1 FROM txm.managed_tx";
    let row = rows.site.sql(holes).remove(0);
    assert_eq!(row[0], row[1], "no hole");
}

/// Goal: a take-over waits for a write that has passed the fence. Method: a transaction that stands
/// behind the fence; with a fence by EXISTS, which locks nothing, the take-over does not wait.
#[test]
fn a_take_over_waits_for_a_write_that_has_passed_the_fence() {
    let rows = Rows::new();
    let (a, b) = (rows.node("a"), rows.node("b"));
    let lease = owned(&a);
    let (me, other) = (a.incarnation(), b.incarnation());
    let writer = rows.site.session();
    let taker = rows.site.session();
    let fence = format!("BEGIN; SELECT txm.fence('{}', {me}, {})", name(), lease.token);
    let acquire = format!("SELECT token FROM txm.acquire('{}', {other})", name());
    taker.sql("SET lock_timeout = '300ms'");
    writer.sql(&fence);
    rows.step("12 seconds");
    assert_eq!(taker.sql_refused(&acquire), "55P03", "it waits");
    writer.sql("ROLLBACK");
    rows.step("-12 seconds");
    rows.site.sql(
        "CREATE OR REPLACE FUNCTION txm.fence(p_signer TEXT, p_me BIGINT, p_token BIGINT) \
           RETURNS VOID LANGUAGE plpgsql AS $$ BEGIN \
           IF NOT EXISTS (SELECT FROM txm.signer_lease l WHERE l.signer = p_signer \
             AND l.owner_incarnation = p_me AND l.fencing_token = p_token \
             AND txm.alive(l.expires_at)) THEN RAISE EXCEPTION USING ERRCODE = 'UB001'; END IF; \
           END $$",
    );
    writer.sql(&fence);
    rows.step("12 seconds");
    assert_eq!(taker.sql(&acquire), [["2".to_owned()]], "two writers at once");
    writer.sql("ROLLBACK");
}

/// Goal: a renewal waits for no fenced write. Method: a transaction that stands behind the fence of
/// one signer, while its process renews two.
#[test]
fn a_renewal_does_not_wait_for_a_write_that_has_passed_the_fence() {
    let rows = Rows::with_signers(2);
    let a = rows.node("a");
    let lease = owned(&a);
    let second = Lease { signer: signer(2), token: 1 };
    assert_eq!(block_on(a.acquire(signer(2))), Ok(Acquired::Mine(second)));
    let writer = rows.site.session();
    writer.sql(&format!("BEGIN; SELECT txm.fence('{}', {}, 1)", name(), a.incarnation()));
    rows.step("9 seconds");
    assert_eq!(block_on(a.renew()), Ok(vec![lease, second]));
    rows.step("9 seconds");
    writer.sql("COMMIT");
    assert_eq!(acquired(&a), token(1), "it was renewed");
    assert_eq!(acquired(&rows.node("b")), of("a"));
}

/// Goal: the fence reads the clock of the moment, not that of a transaction's beginning. Method: a
/// transaction that began while the lease was alive; with `now()` in the clock's place it passes.
#[test]
fn the_fence_reads_the_time_of_the_moment() {
    let rows = Rows::by_the_clock();
    let start = NodeStart {
        lease_duration: Duration::from_millis(500),
        lease_skew: Duration::from_millis(100),
        ..node_start("a")
    };
    let a = block_on(TxmStore::start(&rows.site.target(), &LIMITS, 2, &start)).expect("a start");
    rows.site.sql(&format!("SELECT txm.add_signer('{}', 'keystore', 0, 'x', 'y')", name()));
    let writer = rows.site.session();
    let lease = owned(&a);
    writer.sql("BEGIN; SELECT now()");
    let alive = "SELECT txm.alive(expires_at) FROM txm.signer_lease";
    eventually("the end of the lease", || (rows.site.sql_value(alive) == "f").then_some(()));
    let fence = format!("SELECT txm.fence('{}', {}, {})", name(), a.incarnation(), lease.token);
    assert_eq!(writer.sql_refused(&fence), "UB001");
    writer.sql("ROLLBACK");
    rows.site.sql(
        "CREATE OR REPLACE FUNCTION txm.clock() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE \
           AS 'SELECT now()'",
    );
    let lease = owned(&a);
    writer.sql("BEGIN; SELECT now()");
    eventually("the end of the lease", || (rows.site.sql_value(alive) == "f").then_some(()));
    writer.sql(&fence.replace(&format!(", {})", lease.token - 1), &format!(", {})", lease.token)));
    writer.sql("ROLLBACK");
}

/// Goal: a node acquires only signers that it can sign for, and counts in no share once it has
/// left.
#[test]
fn a_node_without_the_key_does_not_acquire() {
    let rows = Rows::new();
    let start = NodeStart { signers: vec![signer(2)], ..node_start("keyless") };
    let keyless = block_on(TxmStore::start(&rows.site.target(), &LIMITS, 1, &start));
    let keyless = keyless.expect("a start");
    let answer = block_on(keyless.acquire(signer(1)));
    assert!(matches!(answer, Err(StoreError::Away(_))), "{answer:?}");
    let a = rows.node("a");
    block_on(a.keep(&request("r1"))).expect("kept");
    assert!(block_on(keyless.wanting(9)).expect("an answer").signers.is_empty());
    let wanting = block_on(a.wanting(9)).expect("an answer");
    assert_eq!((wanting.signers, wanting.open_signers), (vec![signer(1)], 1));
    assert_eq!(wanting.live_nodes, 3, "setup, keyless and a");
    assert_eq!(block_on(keyless.leave()), Ok(()));
    // It renews while it drains.
    block_on(keyless.renew()).expect("renewed");
    assert_eq!(block_on(a.wanting(9)).expect("an answer").live_nodes, 2);
    rows.step("11 seconds");
    assert_eq!(block_on(a.renew()), Ok(Vec::new()));
    assert_eq!(block_on(a.wanting(9)).expect("an answer").live_nodes, 1);
}
