//! The server that `serve --dev` runs for itself on one machine.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, test_kill_process};

use crate::harness::{Balance, COIN, Server, Site, Way, eventually};

const USER: u64 = 1001;

fn start(site: &Site) -> Server {
    Server::start(site.command_with("embedded"))
}

/// The process of a data directory's PostgreSQL.
fn postgres_pid(site: &Site) -> Option<i32> {
    let file = fs::read_to_string(site.data_dir.join("postgres/postmaster.pid")).ok()?;
    file.lines().next()?.parse().ok()
}

fn is_alive(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Goal: a kill of the server leaves PostgreSQL and the money unchanged, and the next start takes
/// both up; an orderly stop ends both. Method: transfers, SIGKILL, start, transfers, SIGTERM,
/// start.
#[test]
fn the_embedded_postgresql_survives_a_kill_and_ends_with_a_stop() {
    let site = Site::new();
    let server = start(&site);
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    let pid = postgres_pid(&site).expect("it runs");
    server.kill();
    assert!(is_alive(pid), "PostgreSQL outlives its parent");

    let server = start(&site);
    assert_eq!(postgres_pid(&site), Some(pid), "adopted, not started anew");
    assert_eq!(server.usdt(USER), Balance::at_rest(9_900 * COIN, 100 * COIN));
    assert_eq!(server.transfer(USER, Way::ToFunding, "40").status, 200);
    server.stop();
    eventually("PostgreSQL's end", || (!is_alive(pid)).then_some(()));
    assert_eq!(postgres_pid(&site), None);

    let server = start(&site);
    assert_ne!(postgres_pid(&site), Some(pid));
    assert_eq!(server.usdt(USER), Balance::at_rest(9_940 * COIN, 60 * COIN));
    server.stop();
    assert!(Path::new(&site.data_dir).join("postgres").is_dir(), "the cluster stays");
}
