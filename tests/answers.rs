//! Deaths at every named point while a participant gives each of its possible answers, both ways.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::transfer::Op;
use rustix::process::Signal;
use ubscore::crash::POINTS;

use crate::crash::start_alive_with;
use crate::harness::{
    DECISION, Proxy, Server, Site, USERS, Way, crowd, decides, endow, eventually, soak_rounds,
    while_watched,
};

const USER: u64 = USERS[0];

/// The answers of the participants, as listed in the specification, and how the test causes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Success,
    /// EXPLICIT_FAIL by the source: its balance is too small.
    SourceRefuses,
    /// EXPLICIT_FAIL by the target, which is closed; the source is refunded.
    TargetRefuses,
    /// UBSCore's disk takes longer than any caller waits.
    Timeout,
    /// Funding does not get a lock in time: nothing is decided yet.
    Pending,
    /// PostgreSQL ends its connections again and again.
    NetworkError,
    /// Every other answer to a COMMIT is lost.
    Unknown,
}

impl Said {
    const ALL: [Said; 7] = [
        Said::Success,
        Said::SourceRefuses,
        Said::TargetRefuses,
        Said::Timeout,
        Said::Pending,
        Said::NetworkError,
        Said::Unknown,
    ];

    /// The final state of a transfer, and the HTTP status for its cid from then on.
    fn end(self) -> (&'static str, u16) {
        match self {
            Said::SourceRefuses => ("-10", 422),
            Said::TargetRefuses => ("-30", 422),
            _ => ("40", 200),
        }
    }

    /// A line in the server's log that shows this answer; empty for an answer that is not logged.
    fn trace(self) -> &'static str {
        match self {
            Said::Success | Said::SourceRefuses | Said::TargetRefuses => "",
            Said::Timeout => "outcome=\"timeout\"",
            Said::Pending => "blocked; others go on",
            Said::NetworkError => "the store cannot be reached",
            Said::Unknown => "whether the store committed is unknown",
        }
    }
}

/// The counted deaths under one answer.
#[derive(Debug, Default)]
struct Count {
    /// Deaths at the point.
    died: usize,
    /// Transfers that ended without a visit of the point: the server is killed at rest.
    at_rest: usize,
    /// Deaths after the server had received the answer.
    answered: usize,
}

/// Successive servers on one site, with participants that give one answer.
struct Stage {
    said: Said,
    site: Site,
    proxy: Proxy,
    /// Whether the proxy loses every second answer to a COMMIT.
    loses: Arc<AtomicBool>,
    slow: PathBuf,
}

impl Stage {
    fn new(said: Said) -> Stage {
        let site = Site::new()
            // A mark of the idle log would be a visit that is not part of the transfer.
            .with("UBSCORE__ENGINE__IDLE_MARK_MS", 10_000)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 1_000)
            .with("UBSCORE__LOG__FILTER", "info,ubscore::coordinator=debug");
        let site = match said {
            Said::Pending => site.with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100),
            Said::Timeout => site.with("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 100),
            _ => site,
        };
        let slow = site.data_dir.with_extension("slow");
        let site =
            site.with("UBSCORE_FAULT", "sync:slow300").with("UBSCORE_FAULT_WHILE", slow.display());
        let (proxy, loses, _lost) = Proxy::losing(&site, 2);
        Stage { said, site, proxy, loses, slow }
    }

    /// A server that will die at a point, at its first visit or a later one; it connects through
    /// the proxy.
    fn start_dying(&self, point: &str, further: u32) -> Server {
        start_alive_with(&self.site, &self.proxy.url, point, &mut 1, further)
    }

    /// Runs `work` while the participants give this answer.
    fn play(&self, work: impl FnOnce()) {
        match self.said {
            Said::Success | Said::SourceRefuses | Said::TargetRefuses => work(),
            Said::Timeout => {
                fs::write(&self.slow, "").expect("written");
                work();
                fs::remove_file(&self.slow).expect("removed");
            }
            Said::Pending => {
                let held = self.site.hold(
                    DECISION,
                    &Op::OF_TRANSFER.map(|op| format!("({})", decides(op))).join(" OR "),
                );
                work();
                held.release();
                self.site.sql("DROP TRIGGER hold ON transfers_tb");
            }
            Said::NetworkError => {
                let cut = || {
                    self.site.cut_connections();
                };
                while_watched(1, cut, work);
            }
            Said::Unknown => {
                self.loses.store(true, Ordering::Relaxed);
                work();
                self.loses.store(false, Ordering::Relaxed);
            }
        }
    }

    /// One transfer with a server that dies at a point; then a start, rest, the sums, and the cid
    /// once more.
    fn act(&self, server: &mut Server, point: &str, way: Way, further: u32, count: &mut Count) {
        let (site, said) = (&self.site, self.said);
        let (_, target) = way.accounts();
        if said == Said::TargetRefuses {
            server.set_status(USER, target, "DISABLED");
        }
        server.signal(Signal::KILL);
        server.wait();
        let mut dying = self.start_dying(point, further);
        let amount = if said == Said::SourceRefuses { "20000" } else { "0.25" };
        let cid = format!("{point}-{way:?}-{further}");
        let body = way.body_with_cid("USDT", amount, &cid);
        self.play(|| {
            // It may die before, during or after its answer.
            drop(dying.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)));
        });
        eventually("death or rest", || (dying.has_ended() || site.is_at_rest()).then_some(()));
        let died = dying.has_ended();
        dying.signal_if_alive(Signal::KILL);
        let (status, lines) = dying.wait();
        assert_eq!(status.signal(), Some(9), "{said:?} {cid}: {status} {lines}");
        count.died += usize::from(died);
        count.at_rest += usize::from(!died);
        count.answered += usize::from(!said.trace().is_empty() && lines.contains(said.trace()));

        *server = site.start();
        site.wait_for_rest();
        site.assert_in_order(server);
        let reply = server.post_ended(USER, &body);
        let (state, http) = said.end();
        assert_eq!(reply.status, http, "{said:?} {cid}: {reply:?}");
        site.wait_for_rest();
        let rows = site.sql(&format!(
            "SELECT count(*), min(state), max(state) FROM transfers WHERE cid = '{cid}'"
        ));
        let want = ["1".to_owned(), state.to_owned(), state.to_owned()];
        assert_eq!(rows, [want], "{said:?} {cid}");
        if said == Said::TargetRefuses {
            server.set_status(USER, target, "ACTIVE");
        }
        site.assert_in_order(server);
    }
}

/// Goal: for a death at any point, under any answer, the transfer ends once, as the recorded
/// decisions require, with its money on one side. Method: each point, each way, each answer, at the
/// first visit of the point and at the second, fused and not. The point is armed by the
/// environment. One transfer runs while the participant gives this answer; death by SIGKILL;
/// restart; rest; sums; the cid again. `make test` takes one round of each answer, `make soak` the
/// whole product.
#[test]
fn a_death_at_every_point_under_every_answer_is_recovered_from() {
    let all = soak_rounds().is_some();
    let counts = crowd(Said::ALL.len(), |index| {
        let said = Said::ALL[index];
        let mut count = Count::default();
        for further in 0..if all { 2 } else { 1 } {
            let mut stage = Stage::new(said);
            stage.site =
                stage.site.with("UBSCORE__COORDINATOR__FUSE", index % 2 == further as usize);
            let mut server = stage.site.start();
            endow(&stage.site, &server);
            for (at, point) in POINTS.iter().enumerate() {
                for way in Way::BOTH {
                    let sample = further == 0 && at == index && way == Way::BOTH[index % 2];
                    if all || sample {
                        stage.act(&mut server, point, way, further, &mut count);
                    }
                }
            }
        }
        (said, count)
    });
    for (said, Count { died, at_rest, answered }) in counts {
        println!(
            "{said:?}: {died} deaths at a point, {answered} after the answer, {at_rest} at rest"
        );
    }
}
