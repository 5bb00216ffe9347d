//! CRA-001 to CRA-006 and FND-004. The process kills itself by SIGKILL at a named point of a
//! transfer, with fused transitions and without, and the next process continues the transfer.
//!
//! Fusion skips some resting states. Only a process without fusion can die there; both kinds
//! recover.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::thread;

use domain::transfer::Op;
use rustix::process::Signal;
use serde_json::json;
use ubscore::crash;

use super::{
    ROLLS_BACK, SUCCEEDS, USER, after, assert_passed, funding_operations, recorded_operations,
    start_endowed, stored_state, success,
};
use crate::crash::start_alive;
use crate::harness::{COIN, Server, Site, Way};

/// A point of death, and the state that it leaves.
#[derive(Clone, Copy, Debug)]
struct Death {
    way: Way,
    /// The target is disabled.
    refused: bool,
    /// Whether the process that dies fuses transitions.
    fused: bool,
    /// The point, and the number of the transfer's visit to it, from 1.
    point: (&'static str, u32),
    /// The state in PostgreSQL at the death.
    state: &'static str,
    /// Funding's operations recorded by then.
    funding: &'static [&'static str],
    /// UBSCore's operations recorded by then.
    spot: &'static [&'static str],
}

const COMMITTED: &str = "coordinator_after_commit";
const UNCOMMITTED: &str = "coordinator_before_commit";
const UNASKED: &str = "coordinator_before_ask";
const ANSWERED: &str = "coordinator_after_ask";
const SYNCED: &str = "engine_after_sync";

impl Death {
    fn new(way: Way, fused: bool, point: (&'static str, u32), state: &'static str) -> Death {
        Death { way, refused: false, fused, point, state, funding: &[], spot: &[] }
    }

    fn refused(self) -> Death {
        Death { refused: true, ..self }
    }

    fn funding(self, funding: &'static [&'static str]) -> Death {
        Death { funding, ..self }
    }

    fn spot(self, spot: &'static [&'static str]) -> Death {
        Death { spot, ..self }
    }
}

/// A site and its server. Also, per point, the number of the first visit that is not part of a
/// start.
struct Stage {
    site: Site,
    server: Option<Server>,
    visits: BTreeMap<&'static str, u32>,
}

impl Stage {
    fn new() -> Stage {
        // A mark of the idle log would be a visit that is not part of the transfer.
        let site = Site::new().with("UBSCORE__ENGINE__IDLE_MARK_MS", 10_000);
        let server = Some(start_endowed(&site));
        Stage { site, server, visits: BTreeMap::new() }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("one runs")
    }

    /// Ends the server and runs a transfer of 2 USDT until the process dies; returns the transfer's
    /// cid.
    fn die(&mut self, death: Death, cid: &str) {
        self.server.take().expect("one runs").kill();
        let dying = self.site.clone().with("UBSCORE__COORDINATOR__FUSE", death.fused);
        let (point, visit) = death.point;
        // The first visit that is not part of the start; the transfer's visits are counted from
        // there.
        let of_transfer = self.visits.entry(point).or_insert_with(|| {
            let mut visit = 1;
            start_alive(&dying, point, &mut visit, 0).kill();
            visit
        });
        let mut server = start_alive(&dying, point, of_transfer, visit - 1);
        let body = death.way.body_with_cid("USDT", "2", cid);
        drop(server.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)));
        let (status, said) = server.wait();
        assert_eq!(status.signal(), Some(9), "{death:?}: {status} {said}");
    }

    fn recover(&mut self, fused: bool) {
        let site = self.site.clone().with("UBSCORE__COORDINATOR__FUSE", fused);
        self.server = Some(site.start());
        self.site.wait_for_rest();
    }

    fn req_id(&self, cid: &str) -> String {
        self.site.sql_value(&format!("SELECT req_id FROM transfers WHERE cid = '{cid}'"))
    }

    /// Asserts the records of a transfer after its process died.
    fn assert_left(&self, death: Death, req_id: &str) {
        assert_eq!(stored_state(&self.site, req_id), death.state, "{death:?}");
        assert_eq!(funding_operations(&self.site, req_id), death.funding, "{death:?}");
        let recorded: Vec<_> = recorded_operations(&self.site, req_id);
        let recorded: Vec<String> =
            recorded.into_iter().map(|(op, out)| format!("{op}:{out}")).collect();
        assert_eq!(recorded, death.spot, "{death:?}");
    }

    /// Asserts that a transfer of 2 USDT took each required step once.
    fn assert_recovered(&self, death: Death, req_id: &str) {
        let (states, funding, spot): (&[&str], &[&str], _) = match (death.refused, death.way) {
            (false, Way::ToSpot) => (&SUCCEEDS, &["1:1"], vec![success("DEPOSIT")]),
            (false, Way::ToFunding) => (&SUCCEEDS, &["2:1"], vec![success("WITHDRAW")]),
            (true, Way::ToSpot) => {
                let refusal = ("DEPOSIT".to_owned(), "ACCOUNT_DISABLED".to_owned());
                (&ROLLS_BACK, &["1:1", "3:1"], vec![refusal])
            }
            (true, Way::ToFunding) => {
                (&ROLLS_BACK, &["2:2"], vec![success("WITHDRAW"), success("REFUND")])
            }
        };
        assert_passed(self.server(), USER, req_id, states);
        assert_eq!(funding_operations(&self.site, req_id), funding, "{death:?}");
        assert_eq!(recorded_operations(&self.site, req_id), spot, "{death:?}");
    }
}

/// Makes a process die each death; asserts its records, and the result of the next process. If
/// processes with and without fusion can die there, the next process is of the same kind. Otherwise
/// each kind is tried.
fn each_is_recovered(deaths: &[Death]) {
    let mut stage = Stage::new();
    for (index, &death) in deaths.iter().enumerate() {
        let is_twin = |other: &&Death| (other.way, other.point) == (death.way, death.point);
        let recoveries: &[bool] = match deaths.iter().filter(is_twin).count() {
            1 => &[true, false],
            _ => &[death.fused],
        };
        for &recovers_fused in recoveries {
            let (_, target) = death.way.accounts();
            if death.refused {
                stage.server().set_status(USER, target, "DISABLED");
            }
            let before = stage.server().usdt(USER);
            let cid = format!("{index}-{recovers_fused}");
            stage.die(death, &cid);
            let req_id = stage.req_id(&cid);
            stage.assert_left(death, &req_id);
            stage.recover(recovers_fused);
            stage.assert_recovered(death, &req_id);
            let want = if death.refused { before } else { after(before, death.way, 2 * COIN) };
            assert_eq!(stage.server().usdt(USER), want, "{death:?}");
            if death.refused {
                stage.server().set_status(USER, target, "ACTIVE");
            }
        }
    }
    stage.site.assert_in_order(stage.server());
}

#[test]
fn cra_001_a_death_in_init_goes_on_from_init() {
    let deaths = Way::BOTH.map(|way| Death::new(way, false, (COMMITTED, 1), "0"));
    each_is_recovered(&deaths);
}

#[test]
fn cra_002_a_death_before_the_withdraw_is_asked_for_asks_for_it() {
    let deaths = [
        Death::new(Way::ToSpot, false, (COMMITTED, 2), "10"),
        Death::new(Way::ToFunding, false, (UNASKED, 1), "10"),
        Death::new(Way::ToFunding, true, (UNASKED, 1), "10"),
    ];
    each_is_recovered(&deaths);
}

#[test]
fn cra_003_a_death_after_the_withdraw_is_decided_keeps_the_decision() {
    let deaths = [
        Death::new(Way::ToFunding, false, (SYNCED, 1), "10").spot(&["WITHDRAW:SUCCESS"]),
        Death::new(Way::ToFunding, true, (SYNCED, 1), "10").spot(&["WITHDRAW:SUCCESS"]),
        Death::new(Way::ToFunding, true, (ANSWERED, 1), "10").spot(&["WITHDRAW:SUCCESS"]),
    ];
    each_is_recovered(&deaths);
}

/// Funding decides in the transaction of the state, so no point lies between the two. Goal: a
/// withdraw that was sent to PostgreSQL before the death, and may be carried out after it, is made
/// once. Method: it waits for a lock; SIGKILL; the lock is released.
#[test]
fn cra_003_a_withdraw_that_outlives_its_process_is_made_once() {
    for dies_fused in [true, false] {
        for recovers_fused in [true, false] {
            let site = Site::fused(dies_fused);
            let server = start_endowed(&site);
            let before = server.usdt(USER);
            let hold = site.hold_decision(Op::Withdraw);
            let body = Way::ToSpot.body_with_cid("USDT", "2", "sent");
            thread::scope(|scope| {
                let path = "/api/v1/internal_transfer";
                scope.spawn(|| server.try_ask(USER, "POST", path, Some(&body)));
                site.wait_for_held();
                server.signal(Signal::KILL);
            });
            drop(server);
            hold.release();
            let site = site.with("UBSCORE__COORDINATOR__FUSE", recovers_fused);
            let server = site.start();
            let reply = server.post(USER, &body);
            assert_eq!(reply.status, 200, "{reply:?}");
            site.wait_for_rest();
            assert_passed(&server, USER, &reply.req_id(), &SUCCEEDS);
            assert_eq!(funding_operations(&site, &reply.req_id()), ["1:1"]);
            assert_eq!(site.sql_value("SELECT count(*) FROM transfers WHERE cid = 'sent'"), "1");
            assert_eq!(server.usdt(USER), after(before, Way::ToSpot, 2 * COIN));
            site.assert_in_order(&server);
        }
    }
}

#[test]
fn cra_004_a_death_in_source_done_goes_on_to_the_target() {
    let deaths = [
        Death::new(Way::ToSpot, false, (COMMITTED, 3), "20").funding(&["1:1"]),
        Death::new(Way::ToFunding, false, (COMMITTED, 3), "20").spot(&["WITHDRAW:SUCCESS"]),
    ];
    each_is_recovered(&deaths);
}

#[test]
fn cra_005_a_death_in_target_pending_asks_for_the_deposit_again() {
    let unasked = |fused| Death::new(Way::ToSpot, fused, (UNASKED, 1), "30").funding(&["1:1"]);
    let answered = |fused| {
        let death = Death::new(Way::ToSpot, fused, (ANSWERED, 1), "30");
        death.funding(&["1:1"]).spot(&["DEPOSIT:SUCCESS"])
    };
    let to_funding =
        |point| Death::new(Way::ToFunding, false, point, "30").spot(&["WITHDRAW:SUCCESS"]);
    let deaths = [
        unasked(false),
        unasked(true),
        answered(false),
        answered(true),
        to_funding((COMMITTED, 4)),
        to_funding((UNCOMMITTED, 5)),
    ];
    each_is_recovered(&deaths);
}

#[test]
fn cra_006_a_death_in_compensating_asks_for_the_refund_again() {
    let to_spot = |point| {
        let death = Death::new(Way::ToSpot, false, point, "-20").refused();
        death.funding(&["1:1"]).spot(&["DEPOSIT:ACCOUNT_DISABLED"])
    };
    let to_funding = |fused, point| {
        Death::new(Way::ToFunding, fused, (point, 2), "-20").refused().funding(&["2:2"])
    };
    let unasked = |fused| to_funding(fused, UNASKED).spot(&["WITHDRAW:SUCCESS"]);
    let answered =
        |fused| to_funding(fused, ANSWERED).spot(&["WITHDRAW:SUCCESS", "REFUND:SUCCESS"]);
    let deaths = [
        to_spot((COMMITTED, 5)),
        to_spot((UNCOMMITTED, 6)),
        unasked(false),
        unasked(true),
        answered(false),
        answered(true),
    ];
    each_is_recovered(&deaths);
}

/// Goal: a death at any point loses nothing in transit. Method: every point of a transfer, both
/// ways, fused and not in turn; a request that was never accepted is posted again under its cid.
#[test]
fn fnd_004_a_death_at_any_point_loses_nothing_in_transit() {
    let mut stage = Stage::new();
    let mut fused = true;
    for &point in crash::POINTS {
        for way in Way::BOTH {
            fused = !fused;
            let before = stage.server().usdt(USER);
            let cid = format!("{point}-{way:?}");
            stage.die(Death::new(way, fused, (point, 1), ""), &cid);
            stage.recover(fused);
            assert_eq!(stage.server().usdt(USER).sum(), before.sum(), "{cid}");
            let reply = stage.server().post(USER, &way.body_with_cid("USDT", "2", &cid));
            assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("COMMITTED")), "{cid}");
            stage.site.wait_for_rest();
            stage.assert_recovered(Death::new(way, fused, (point, 1), ""), &reply.req_id());
            assert_eq!(stage.server().usdt(USER), after(before, way, 2 * COIN), "{cid}");
        }
        // The other way meets the next point with fusion.
        fused = !fused;
    }
    stage.site.assert_in_order(stage.server());
}
