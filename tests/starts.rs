//! The table locks of a start, and the settings of its connections.

use std::thread;

use rustix::process::Signal;
use ubscore::exit::Exit;

use crate::harness::{Server, Site, Way, eventually};

const USER: u64 = 1001;

/// Goal: if a foreign session keeps a start from its tables, the start names it and lets it live.
/// Method: a session of another program locks one of the tables and does not end.
#[test]
fn a_foreign_session_that_keeps_a_start_from_its_tables_is_named() {
    let site = Site::new();
    site.start().stop();
    for table in ["journal_tb", "engine_state"] {
        let foreign = site.session();
        foreign.sql("SET application_name = 'a report'; BEGIN");
        foreign.sql(&format!("LOCK TABLE {table} IN ROW EXCLUSIVE MODE"));
        let pid = foreign.sql("SELECT pg_backend_pid()")[0][0].clone();
        let before = site.sql_value("SELECT incarnation FROM engine_state");
        let (code, said) = site.clone().with("UBSCORE__START__FENCE_MS", 300).start_refused();
        assert_eq!(code, i32::from(Exit::Failed.code()), "it may pass: {said}");
        let last = said.lines().last().expect("a line");
        let holder = format!("pid {pid} on {table} (user ");
        for word in [&holder, "application \"a report\"", "query begun 2", "start.fence_ms"] {
            assert!(last.contains(word), "{word}: {said}");
        }
        assert_eq!(site.sql_value("SELECT incarnation FROM engine_state"), before);
        foreign.sql("COMMIT");
    }
    // A start that waits goes on when the session ends.
    let foreign = site.session();
    foreign.sql("BEGIN; LOCK TABLE journal_tb IN ROW EXCLUSIVE MODE");
    let waits =
        "SELECT count(*) FROM pg_locks WHERE relation = 'journal_tb'::regclass AND NOT granted";
    let server = thread::scope(|scope| {
        let starting = scope.spawn(|| site.start());
        eventually("a start that waits", || (site.sql_value(waits) != "0").then_some(()));
        foreign.sql("COMMIT");
        starting.join().expect("no panic")
    });
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
}

/// Goal: a process that hangs in a transaction keeps no successor from starting. Method: its flight
/// waits in the middle, and it is stopped; a successor on a copy of its files starts and moves
/// money; then the old one is woken.
#[test]
fn a_session_of_an_earlier_process_that_hangs_is_ended() {
    let site = Site::new();
    site.sql(&format!("ALTER DATABASE {} SET deadlock_timeout = '50ms'", site.database));
    let old = site.start();
    assert_eq!(old.transfer(USER, Way::ToSpot, "100").status, 200);
    site.wait_for_rest();
    let hold = site.hold("INSERT ON transfers_tb", "NEW.amount = 12e8");
    let (http, body) = (old.http, Way::ToSpot.body("USDT", "12"));
    let mut old = thread::scope(|scope| {
        scope.spawn(move || {
            let planned = crate::harness::Planned { user: USER, body };
            drop(crate::harness::post_to(http, &planned));
        });
        site.wait_for_held();
        old.pause();
        let successor = site.with_fresh_data_dir();
        site.copy_data(&successor);
        let new = successor.start();
        new.says("ended a session that kept this start from a table");
        assert_eq!(new.transfer(USER, Way::ToFunding, "60").status, 200);
        successor.wait_for_rest();
        old.signal(Signal::CONT);
        successor.assert_in_order(&new);
        old
    });
    let (status, said) = old.wait();
    assert_eq!(status.code(), Some(i32::from(Exit::Superseded.code())), "{said}");
    hold.release();
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers WHERE amount = 12"), "0");
}

/// Goal: defaults of a role or a database do not reach our connections. Method: each default gets a
/// harmful value; a trigger notes the settings of the session that writes a flight.
#[test]
fn defaults_of_a_role_do_not_reach_our_connections() {
    let site = Site::new();
    site.start().stop();
    let harmful = [
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("lock_timeout", "1"),
        ("statement_timeout", "1"),
        ("idle_in_transaction_session_timeout", "1"),
    ];
    let seen = harmful.map(|(name, _)| format!("current_setting('{name}')")).join(", ");
    site.sql(&format!(
        "CREATE TABLE seen_tb (settings TEXT[]); \
         CREATE FUNCTION see() RETURNS TRIGGER LANGUAGE plpgsql AS $$ \
         BEGIN INSERT INTO seen_tb VALUES (ARRAY[{seen}]); RETURN NEW; END $$; \
         CREATE TRIGGER see BEFORE INSERT ON transfers_tb FOR EACH ROW EXECUTE FUNCTION see()"
    ));
    for (name, value) in harmful {
        let database = &site.database;
        site.sql(&format!("ALTER ROLE CURRENT_USER IN DATABASE {database} SET {name} = '{value}'"));
    }
    let server: Server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    server.kill();
    // A session of our own would have the harmful defaults.
    let database = &site.database;
    let reset = format!("ALTER ROLE CURRENT_USER IN DATABASE {database} RESET ALL");
    site.elsewhere().sql(&reset);
    let settings = site.session().sql("SELECT DISTINCT settings::text FROM seen_tb");
    assert_eq!(settings, [["{on,\"read committed\",off,10s,20s,20s}"]]);
}
