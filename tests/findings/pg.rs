//! The connection to PostgreSQL: timeline, TLS, take-over, the embedded server.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use ubscore::alert::Alert;
use ubscore::config::auth::DEVELOPMENT_SECRET;
use ubscore::exit::Exit;

use crate::harness::{
    Balance, COIN, Certificate, Cluster, Planned, Reply, Server, Site, Way, assert_kept, crowd,
    eventually, external, force, post_to, refused, said,
};

const USER: u64 = 1001;

fn alarm(alert: Alert) -> String {
    format!("alert=\"{}\"", alert.name())
}

/// The operations that move money, one of each kind.
fn movements(server: &Server) -> Vec<Reply> {
    let withdrawal = external(USER, "USDT", "900", "after-the-failover");
    vec![
        server.transfer(USER, Way::ToSpot, "900"),
        server.transfer(USER, Way::ToFunding, "900"),
        server.admin("POST", "/admin/v1/withdrawals", &withdrawal),
    ]
}

/// Tries to move money until the service is halted; returns the reason. Nothing may move meanwhile.
fn refused_until_halted(site: &Site, server: &Server) -> String {
    let halted = || site.sql_value("SELECT COALESCE(halt_reason, '') FROM engine_state");
    eventually("the halt", || {
        for reply in movements(server) {
            assert!(![200, 202].contains(&reply.status), "money has moved: {reply:?}");
        }
        let said = server.said();
        (server.ready() == 503 && said.contains("halted") && !halted().is_empty()).then_some(())
    });
    halted()
}

/// Goal: after a failover to a replica that lags no money leaves twice, with any interval of the
/// audit. Method: money goes to Spot; PostgreSQL dies, and an earlier copy takes its place with a
/// timeline of its own; both ways and a withdrawal are posted until the service is halted.
#[test]
fn f01_a_promoted_replica_that_lags_lets_nothing_move() {
    crowd(2, |slow| {
        let every_ms = [300, 10_000][slow];
        let (site, cluster) = Site::on_its_own_cluster();
        let site = site.with("UBSCORE__CONSERVATION__EVERY_MS", every_ms);
        let server = site.start();
        let replica = cluster.copy_files();
        assert_eq!(server.transfer(USER, Way::ToSpot, "900").status, 200);
        site.wait_for_rest();
        cluster.kill();
        Cluster::promote(&replica);
        cluster.take_over(&replica);
        let why = refused_until_halted(&site, &server);
        server.says(&alarm(Alert::PostgresChanged));
        server.says("timeline 1");
        server.says("timeline 2");
        server.says(&alarm(Alert::ConservationViolated));
        assert!(!why.is_empty());
        let withdrawn = "SELECT count(*) FROM externals WHERE idem_key LIKE 'after%'";
        assert_eq!(site.sql_value(withdrawn), "0");
        assert_eq!(
            site.sql_value("SELECT count(*) FROM transfers"),
            "0",
            "the rows equal the copy"
        );
        // An operator who resumes gets the same answer again.
        assert_eq!(server.resume("go on").status, 503);
    });
}

/// Goal: external operations that a promoted replica lacks are never lost without a report. The
/// running service halts, and a start is refused. Method: a deposit and a withdrawal are answered
/// after a copy, which then takes over with a timeline of its own, or in place.
#[test]
fn f01_a_replica_that_lacks_only_external_operations_halts() {
    crowd(3, |manner| {
        let (site, cluster) = Site::on_its_own_cluster();
        let server = site.start();
        let replica = cluster.copy_files();
        server.deposit(USER, "USDT", "500");
        let withdrawal = external(USER, "USDT", "200", "paid-out");
        let paid = server.admin("POST", "/admin/v1/withdrawals", &withdrawal);
        assert_eq!(paid.status, 200, "{paid:?}");
        let server = match manner {
            // Live, and live without another timeline.
            0 | 1 => Some(server),
            _ => {
                server.stop();
                None
            }
        };
        cluster.kill();
        if manner != 1 {
            Cluster::promote(&replica);
        }
        cluster.take_over(&replica);
        let Some(server) = server else {
            let (code, said) = site.start_refused();
            assert_eq!(code, i32::from(Exit::Damage.code()), "{said}");
            assert!(said.contains("has gone back in time") && said.contains("paid-out"), "{said}");
            return;
        };
        let why = refused_until_halted(&site, &server);
        server.says(&alarm(Alert::PostgresChanged));
        assert!(!why.is_empty(), "manner {manner}");
    });
}

/// Goal: a failover without a loss, and another one, under load, stop the service only for a
/// comparison, and no answer changes. Method: twice in a row a copy of the last moment takes over
/// with a timeline of its own, while transfers with cids are posted.
#[test]
fn f01_a_failover_that_loses_nothing_is_compared_and_gone_on_with() {
    let (site, cluster) = Site::on_its_own_cluster();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1000").status, 200);
    for failover in 0..2 {
        let plan: Vec<_> = (0..300)
            .map(|index| {
                let cid = format!("failover-{failover}-{index}");
                Planned {
                    user: USER,
                    body: Way::BOTH[index % 2].body_with_cid("USDT", "0.5", &cid),
                }
            })
            .collect();
        let over = AtomicBool::new(false);
        let replies = crowd(4, |caller| {
            let mut replies = Vec::new();
            if caller == 0 {
                eventually("transfers", || {
                    let done = "SELECT count(*) FROM transfers WHERE cid LIKE 'failover-%'";
                    (site.sql_value(done).parse::<u32>().expect("a number") > 8 * (failover + 1))
                        .then_some(())
                });
                cluster.fail_over();
                over.store(true, Ordering::Relaxed);
                return replies;
            }
            for (index, planned) in plan.iter().enumerate().skip(caller - 1).step_by(3) {
                replies.push((index, post_to(server.http, planned)));
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            replies
        });
        let timeline = format!("timeline {}", failover + 2);
        eventually("the comparison", || {
            (server.said().contains(&timeline) && server.ready() == 200).then_some(())
        });
        let mut answered = vec![None; plan.len()];
        for (index, reply) in replies.into_iter().flatten() {
            answered[index] = reply;
        }
        let asked = answered.iter().rposition(Option::is_some).expect("an answer") + 1;
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan[..asked], &answered[..asked]);
        site.wait_for_rest();
    }
    assert!(server.said().contains(&alarm(Alert::PostgresChanged)));
    site.assert_in_order(&server);
    server.stop();
    // The next start knows the server.
    let server = site.start();
    assert!(!server.said().contains(&alarm(Alert::PostgresChanged)));
    site.assert_in_order(&server);
}

/// Goal: if two primaries both answer, one process writes to one. Method: a URL of two hosts; the
/// first one is a replica that is promoted while the second one is up; then one connection of a
/// worker is cut.
#[test]
fn f01_one_process_never_writes_to_two_primaries() {
    let (site, cluster) = Site::on_its_own_cluster();
    let site = site.with("UBSCORE__COORDINATOR__SHARDS", 2);
    site.start().stop();
    let replica = cluster.copy_files();
    Cluster::promote(&replica);
    let other = Cluster::start_beside(&replica);
    other.kill();
    let (first, second) = (other.socket_directory(), cluster.socket_directory());
    let both = site.url().replace(&second, &format!("{first}&host={second}"));
    let server = Server::start(site.command_with(&both));
    for user in [1001, 1002] {
        assert_eq!(server.transfer(user, Way::ToSpot, "10").status, 200);
    }
    site.wait_for_rest();
    other.restart();
    // One worker's connection, the last one that has flown.
    site.sql(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = '{}' AND application_name ~ '^ubscore [0-9]+$' AND query LIKE '%transfers_tb%' \
         ORDER BY state_change DESC LIMIT 1",
        site.database
    ));
    let transfers = || site.sql_value("SELECT count(*) FROM transfers");
    let before = transfers();
    let mut answered = 0;
    eventually("the halt", || {
        for user in [1001, 1002] {
            if server.transfer(user, Way::ToSpot, "1").status == 200 {
                answered += 1;
            }
        }
        (server.ready() == 503 && server.said().contains(&alarm(Alert::ConservationViolated)))
            .then_some(())
    });
    server.says(&alarm(Alert::PostgresChanged));
    let written =
        transfers().parse::<u32>().expect("a number") - before.parse::<u32>().expect("one");
    // The commit in progress at the switch to the other primary may have lost its answer.
    assert!((answered..=answered + 2).contains(&written), "{answered} answered, {written} written");
    let there = site.url().replace(&second, &first);
    let config: tokio_postgres::Config = there.parse().expect("a URL");
    let count = crate::harness::block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("the other");
        tokio::spawn(connection);
        let row = client.query_one("SELECT count(*) FROM transfers", &[]).await.expect("a row");
        row.get::<_, i64>(0)
    });
    assert_eq!(count, 0, "nothing was written to the other one");
}

/// Goal: a process that learns of its successor ends at once, without a write of its own, and
/// answers no read from then on. Method: SIGSTOP, a successor on a copy of the log that moves
/// money, SIGCONT; only reads are sent to the old process.
#[test]
fn f24_a_superseded_process_ends_at_once_and_answers_no_read() {
    let site = Site::new();
    let mut old = site.start();
    assert_eq!(old.transfer(USER, Way::ToSpot, "100").status, 200);
    site.wait_for_rest();
    old.signal(Signal::STOP);
    let successor = site.with_fresh_data_dir();
    site.copy_data(&successor);
    let new = successor.start();
    assert_eq!(new.transfer(USER, Way::ToFunding, "60").status, 200);
    successor.wait_for_rest();
    old.signal(Signal::CONT);
    eventually("the end", || {
        let learned = old.said().contains(&alarm(Alert::Fenced));
        let read = old.try_ask(USER, "GET", "/api/v1/balances", None);
        assert!(!learned || read.is_err(), "it answers: {read:?}");
        old.has_ended().then_some(())
    });
    let (status, said) = old.wait();
    assert_eq!(status.code(), Some(i32::from(Exit::Superseded.code())), "{said}");
    assert!(said.contains(&alarm(Alert::Fenced)), "{said}");
    successor.assert_in_order(&new);
}

/// Goal: a refused start has changed nothing. Method: the newest migration's row and the hash of
/// the functions are removed from a database in use, like those of an older version; a start with
/// an empty directory, and a used log with a fresh database, are refused.
#[test]
fn f14_a_refused_start_has_migrated_nothing() {
    let site = Site::new();
    let server = site.start();
    let version = || {
        site.sql(
            "SELECT (SELECT max(version) FROM refinery_schema_history), functions_hash \
             FROM engine_state",
        )
    };
    let older = "DELETE FROM refinery_schema_history \
                 WHERE version = (SELECT max(version) FROM refinery_schema_history)";
    site.sql(older);
    site.sql("UPDATE engine_state SET functions_hash = NULL");
    let before = version();
    let (code, said) = site.with_fresh_data_dir().start_refused();
    assert_eq!(code, i32::from(Exit::Damage.code()), "{said}");
    assert!(said.contains("the log directory is empty"), "{said}");
    assert_eq!(version(), before);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    server.stop();
    let fresh = site.with_fresh_database();
    let (code, said) = fresh.start_refused();
    assert_eq!(code, i32::from(Exit::Damage.code()), "{said}");
    assert!(said.contains("not a pair"), "{said}");
    assert_eq!(fresh.sql_value("SELECT to_regclass('engine_state') IS NULL"), "t");
}

/// Goal: a commit with a cancelled wait for a standby is not trusted. Method: an absent standby;
/// every wait for it is cancelled again and again while a transfer is posted; then commits wait for
/// no standby any more.
#[test]
fn f23_a_cancelled_wait_for_a_standby_is_no_commit() {
    let (site, _cluster) = Site::on_its_own_cluster();
    let site = site.with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 500);
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    site.wait_for_rest();
    let session = site.session();
    let wait_for = |names: &str| {
        // No server's default may silence the warning.
        session.sql("ALTER SYSTEM SET client_min_messages = 'error'");
        session.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        session.sql("SELECT pg_reload_conf()");
    };
    wait_for("nobody");
    let body = Way::ToFunding.body_with_cid("USDT", "30", "in-doubt");
    let reply = thread::scope(|scope| {
        let asked = scope.spawn(|| server.post(USER, &body));
        eventually("commits in doubt", || {
            session.sql(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
            );
            let doubts = server.said().matches("may be on no standby").count();
            (doubts >= 3 && asked.is_finished()).then_some(())
        });
        asked.join().expect("no panic")
    });
    assert_ne!(reply.status, 200, "{reply:?}");
    let done = "SELECT count(*) FROM transfers WHERE cid = 'in-doubt' AND state = 40";
    assert_ne!(server.post(USER, &body).status, 200, "{}", site.sql_value(done));
    wait_for("");
    eventually("the commit", || (server.post(USER, &body).status == 200).then_some(()));
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers WHERE cid = 'in-doubt'"), "1");
    server.says("a later commit covers");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// A PostgreSQL over TCP with TLS, made of a copy of another one's files.
struct Secure {
    child: Child,
    port: u16,
    _place: TempDir,
}

impl Secure {
    fn start(copy: &Path, certificate: &Certificate) -> Secure {
        let place = tempfile::tempdir().expect("a directory");
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).expect("for its user");
        let cluster = place.path().join("cluster");
        let copied = Command::new("cp").arg("-a").arg(copy.join("postgres")).arg(&cluster).status();
        assert!(copied.expect("cp").success());
        let owner = fs::metadata(&cluster).expect("a cluster");
        for (from, name) in [(&certificate.certificate, "tls.crt"), (&certificate.key, "tls.key")] {
            let file = cluster.join(name);
            fs::copy(from, &file).expect("copied");
            fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("private");
            chown(&file, Some(owner.uid()), Some(owner.gid())).expect("its own");
        }
        let rules = cluster.join("pg_hba.conf");
        let rule = "hostssl all all 127.0.0.0/8 trust\n";
        fs::write(&rules, rule).expect("written");
        let port =
            TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let bin = Command::new("pg_config").arg("--bindir").output().expect("pg_config").stdout;
        let postgres = Path::new(String::from_utf8(bin).expect("text").trim()).join("postgres");
        let mut command = Command::new(postgres);
        command.arg("-D").arg(&cluster).args(["-c", "listen_addresses=127.0.0.1,127.0.0.2"]);
        command.args(["-c", &format!("port={port}"), "-c", "unix_socket_directories="]);
        command.args(["-c", "ssl=on", "-c", "ssl_cert_file=tls.crt", "-c", "ssl_key_file=tls.key"]);
        command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        Secure { child: command.spawn().expect("postgres"), port, _place: place }
    }

    fn url(&self, site: &Site, host: &str, parameters: &str) -> String {
        format!("postgres://postgres@{host}:{}/{}?{parameters}", self.port, site.database)
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Goal: PostgreSQL is reached by TLS as in libpq's parameters, and an unproven server is refused
/// with its reason. Method: a real server that takes TLS only, with a certificate for two names;
/// each mode, another name, another issuer.
#[test]
fn f13_tls_to_postgresql_by_sslmode_and_sslrootcert() {
    let (site, cluster) = Site::on_its_own_cluster();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    site.wait_for_rest();
    server.stop();
    let copy = cluster.copy_files();
    let (certificate, stranger) = (Certificate::issued(&site), Certificate::issued(&site));
    let secure = Secure::start(&copy, &certificate);
    let root = format!("sslrootcert={}", certificate.issuer.display());
    let other_root = format!("sslrootcert={}", stranger.issuer.display());
    let with = |host: &str, mode: &str, root: &str| {
        secure.url(&site, host, &format!("sslmode={mode}&{root}"))
    };
    let verified = with("localhost", "verify-full", &root);
    eventually("PostgreSQL", || {
        let (code, _, _) =
            said(&site.tool_with(["verify"], &verified).output().expect("the binary"));
        (code == 0).then_some(())
    });
    for (url, why) in [
        (with("127.0.0.2", "verify-full", &root), "NotValidForName"),
        (with("localhost", "verify-full", &other_root), "UnknownIssuer"),
        (with("localhost", "verify-ca", &other_root), "UnknownIssuer"),
        (with("localhost", "require", &other_root), "UnknownIssuer"),
        (with("localhost", "verify-full", ""), "sslrootcert"),
        (with("localhost", "disable", ""), "no pg_hba.conf entry"),
    ] {
        let (code, said) = refused(site.command_with(&url));
        assert_ne!(code, 0, "{url}: {said}");
        let said = said.replace("not valid for name", "NotValidForName");
        assert!(said.contains(why), "{url}: {said}");
    }
    for url in [
        with("127.0.0.2", "verify-ca", &root),
        with("127.0.0.2", "require", ""),
        with("127.0.0.1", "prefer", ""),
    ] {
        let (code, _, why) = said(&site.tool_with(["verify"], &url).output().expect("the binary"));
        assert_eq!(code, 0, "{url}: {why}");
    }
    let server = Server::start(site.command_with(&verified));
    assert_eq!(server.transfer(USER, Way::ToFunding, "40").status, 200);
    // pg_dump as well.
    let backup = site.fresh_path("backup");
    let backup = backup.to_str().expect("text");
    let (code, _, why) =
        said(&site.tool_with(["backup", backup], &verified).output().expect("the binary"));
    assert_eq!(code, 0, "{why}");
    server.stop();
}

/// Goal: the embedded PostgreSQL is started again when it dies, and knows no secret. Method: its
/// environment is read; SIGKILL to its first process; a transfer under one cid until it is taken.
#[test]
fn f16_a_dead_embedded_postgresql_runs_again_and_knows_no_secret() {
    let site = Site::new();
    let server = Server::start(site.command_with("embedded"));
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    let pid = || -> Option<i32> {
        let file = fs::read_to_string(site.data_dir.join("postgres/postmaster.pid")).ok()?;
        file.lines().next()?.parse().ok()
    };
    for _ in 0..2 {
        let first = pid().expect("it runs");
        let environment = fs::read(format!("/proc/{first}/environ")).expect("readable");
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("PATH=") && !environment.contains("UBSCORE"), "{environment}");
        kill_process(Pid::from_raw(first).expect("a process"), Signal::KILL).expect("killed");
        eventually("another one", || pid().filter(|pid| *pid != first));
        let body = Way::ToFunding.body_with_cid("USDT", "20", &format!("after-{first}"));
        eventually("a transfer", || (server.post(USER, &body).status == 200).then_some(()));
    }
    eventually("rest", || {
        (server.usdt(USER) == Balance::at_rest(9_940 * COIN, 60 * COIN)).then_some(())
    });
    eventually("a line about it", || server.said().contains("has ended").then_some(()));
    server.stop();
}

/// Goal: an archive command sees no secret of the service. Method: a command that writes its
/// environment to a file.
#[test]
fn f09_an_archive_command_gets_no_secret() {
    let archive = tempfile::tempdir().expect("a directory");
    let seen = archive.path().join("environment");
    let command = format!("env > {0}.part && mv {0}.part {0}", seen.display());
    let site = Site::new()
        .with("UBSCORE__SNAPSHOT__ARCHIVE_COMMAND", command)
        .with("UBSCORE__SNAPSHOT__KEEP", 1)
        .with("UBSCORE__AUTH__SECRET", DEVELOPMENT_SECRET);
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    server.kill();
    let server = site.start();
    force(&site, &server);
    let environment = eventually("an archived segment", || fs::read_to_string(&seen).ok());
    assert!(environment.contains("PATH="), "{environment}");
    assert!(!environment.contains("UBSCORE"), "{environment}");
}
