use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use ubscore::recharge::proof::{ProofKeys, Proven};

use super::paid::unasked;
use super::*;
use crate::harness::{Certificate, Recharging, SetAtEnd, crowd, curl, recharge, replace};

/// Callers of a load, each a user with one order at a time.
const CALLERS: usize = 2;
/// The user with orders that wait for their payer.
const WAITING: u64 = 1001;

/// A site for a load of orders: files are read again at once.
fn busy(site: Site) -> Site {
    site.with("UBSCORE__RELOAD__EVERY_MS", 100)
        .with("UBSCORE__RECHARGE__CREATE_WAIT_MS", 60_000)
        .with("UBSCORE__RECHARGE__USER_CREATES_PER_MINUTE_MAX", 10_000)
        .with("UBSCORE__RECHARGE__USER_OPEN_MAX", 100)
        .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", 120_000)
}

/// Orders that are made and paid without a pause while `work` runs. Then each of them has to be
/// PAID. Returns their number.
fn under_load(
    server: &Server,
    pay: impl Fn(&str) + Sync,
    channels: &[&str],
    work: impl FnOnce(),
) -> usize {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            crowd(CALLERS, |caller| {
                let user = WAITING + 1 + caller as u64;
                let mut ids = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let channel = channels[ids.len() % channels.len()];
                    let key = format!("load-{}", ids.len());
                    let id = server.recharge_paying(user, &recharge("100", channel, &key));
                    pay(&id);
                    ids.push(id);
                }
                ids.iter().for_each(|id| drop(server.recharge_is(user, id, "PAID")));
                ids.len()
            })
        });
        {
            let _done = SetAtEnd(&done);
            work();
        }
        crowd.join().expect("no panic").into_iter().sum()
    })
}

impl Shop {
    /// How often the keys of WeChat Pay were fetched, as the log has it.
    fn fetches(&self) -> usize {
        self.server.said().matches("renewal=Renewed").count()
    }
}

/// RCH-013. Goal: the platform's keys change under load, and no payment is lost; an unknown serial
/// costs one fetch a minute. Method: the simulator signs with a new certificate beside the old one,
/// and an operator replaces the file; each credit comes by a callback. Then a third key, which no
/// file has: its callbacks are refused until the list is fetched behind one of them.
#[test]
fn rch_013_over_http_keys_change_under_load_and_no_payment_is_lost() {
    let began = Instant::now();
    let shop = Shop::at(busy(unasked(Site::new())));
    let add = || drop(shop.simulate("POST", "/sim/keys", &json!({"kind": "certificate"})));
    let paid = |count| {
        eventually("payments", || (shop.counted("wechat", "success") >= count).then_some(()));
    };
    let pay = |id: &str| drop(shop.simulate("POST", &format!("/pay/{id}"), &json!({})));
    let orders = under_load(&shop.server, pay, &["wechat"], || {
        paid(1);
        add();
        eventually("a new serial", || (shop.counted("wechat", "serial") > 0).then_some(()));
        let next = shop.file("platform_2_certificate.pem");
        replace(&shop.path("platform_1_certificate.pem"), &next);
        shop.server.says("keys of channel wechat");
        paid(shop.counted("wechat", "success") + 4);
    });
    assert!(orders > 4, "{orders} orders");
    assert_eq!(shop.rows(), [orders.to_string().as_str(); 4]);
    let foreign = transaction("4200001", "shop-1");
    for key in [1, 2] {
        let reply = shop.post(WECHAT, &shop.wechat_by(key, &foreign, now_s()));
        assert_eq!(reply.status, 204, "both are valid: {reply:?}");
    }

    add();
    let letter = shop.wechat_by(3, &foreign, now_s());
    let mut refused = 0;
    eventually("a fetch of the list", || {
        let status = shop.post(WECHAT, &letter).status;
        refused += usize::from(status == 401);
        thread::sleep(Duration::from_millis(50));
        (status == 204).then_some(())
    });
    // One at the start, and then one a minute.
    let most = 2 + usize::try_from(began.elapsed().as_secs() / 60).expect("few");
    assert!(refused > 0 && shop.fetches() <= most, "{} fetches, {refused}", shop.fetches());
    shop.site.assert_verified();
}

/// A desk; the rows of its orders can be taken away by hand.
struct Office {
    desk: Recharging,
    server: Server,
}

impl Office {
    /// An order of each channel that waits for its payer.
    fn waiting(&self, key: &str) -> [String; 2] {
        ["wechat", "card"].map(|channel| {
            let body = recharge("100", channel, &format!("{key}-{channel}"));
            self.server.recharge_paying(WAITING, &body)
        })
    }

    /// Takes the rows of orders away.
    fn lose(&self, ids: &[String]) {
        let which: Vec<String> =
            ids.iter().map(|id| format!("ulid_uuid('{}')", &id["wrc_".len()..])).collect();
        self.desk.site.sql(&format!(
            "ALTER TABLE recharges_tb DISABLE TRIGGER USER; \
             WITH gone AS (DELETE FROM recharges_tb WHERE recharge_id IN ({}) RETURNING *) \
             INSERT INTO kept SELECT * FROM gone; \
             ALTER TABLE recharges_tb ENABLE TRIGGER USER",
            which.join(", ")
        ));
    }

    /// Waits until the payments of lost orders are held, all for this cause.
    fn are_held(&self, ids: &[String], cause: &str) {
        for id in ids {
            let found = eventually("a held payment", || {
                let reply = self.server.admin_get("/admin/v1/recharges?held=true").json();
                let rows = reply["payments"].as_array().expect("a list").clone();
                rows.into_iter().find(|row| row["merchant_no"] == json!(id))
            });
            assert_eq!(found["cause"], json!(cause), "{found}");
        }
    }

    /// Whether the proof of a new order is signed by a secret.
    fn signs_by(&self, secret: &str, key: &str) -> bool {
        let body = recharge("100", "wechat", key);
        let id = self.server.recharge_paying(WAITING, &body);
        let there = self.desk.sim.done("GET", &format!("/sim/orders/{id}"), &json!({}));
        let keys = ProofKeys::new("test", secret.as_bytes(), None);
        let (proven, _) = keys.verify(there[0]["proof"].as_str(), "wechat", &id);
        proven == Proven::Ours
    }
}

/// Goal: the secret of proofs changes under load, and no payment is lost. Method: orders made under
/// the old secret are paid behind the change, among them some without a row here: their proofs are
/// ours until the old secret is gone too. A file that holds no secret changes nothing.
#[test]
fn rch_046_the_proof_secret_changes_under_load_and_no_payment_is_lost() {
    const NEW: &str = "another secret of proofs, of more than 32 bytes";
    // Rows are taken away by hand below.
    let site = busy(Site::new()).with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
    let desk = Recharging::on(site);
    let server = desk.start();
    let office = Office { desk, server };
    let (desk, server) = (&office.desk, &office.server);
    desk.site.sql("CREATE TABLE kept AS SELECT * FROM recharges_tb");
    let pay = |id: &str| drop(desk.sim.pay(id));
    let (early, lost, last) =
        (office.waiting("early"), office.waiting("lost"), office.waiting("last"));
    let orders = under_load(server, pay, &["wechat", "card"], || {
        let old = desk.proof_secret();
        desk.write_proof_secret(0, "too short");
        server.says("recharge.proof_secret = ***");
        assert!(!office.signs_by(NEW, "none"), "the secret stays");
        desk.write_proof_secret(0, &old);
        desk.change_proof_secret(NEW);
        let mut tries = 0;
        eventually("a proof by the new secret", || {
            tries += 1;
            office.signs_by(NEW, &format!("try-{tries}")).then_some(())
        });
        office.lose(&lost);
        early.iter().chain(&lost).for_each(|id| pay(id));
        early.iter().for_each(|id| drop(server.recharge_is(WAITING, id, "PAID")));
        office.are_held(&lost, "UNMATCHED");
    });
    assert!(orders >= CALLERS, "{orders} orders");

    desk.write_proof_secret(1, "");
    let ends = |said: &str| said.matches("secrets of proofs").count();
    let known = ends(&server.said());
    // A new order's proof tells nothing of the earlier secret: the log does.
    eventually("the end of the old secret", || (ends(&server.said()) > known).then_some(()));
    office.lose(&last);
    last.iter().for_each(|id| pay(id));
    office.are_held(&last, "UNPROVEN");

    desk.site.sql("INSERT INTO recharges_tb SELECT * FROM kept");
    let back: BTreeSet<&String> = lost.iter().chain(&last).collect();
    back.iter().for_each(|id| drop(server.recharge_is(WAITING, id, "PAID")));
    desk.site.assert_verified();
}

/// Goal: callbacks come over TLS, also while the certificate changes, and no payment is lost.
/// Method: the simulator trusts two issuers and no other; a certificate without its key changes
/// nothing; then the whole pair changes. Each credit comes by a callback.
#[test]
fn callbacks_over_tls_lose_nothing_while_the_certificate_changes() {
    let site = Site::new();
    let [current, next] = [(); 2].map(|()| Certificate::issued(&site));
    let content = |path: &PathBuf| fs::read_to_string(path).expect("our own file");
    let issuers = site.fresh_path("issuers");
    let both = content(&current.issuer) + content(&next.issuer).as_str();
    fs::write(&issuers, both).expect("written");
    let desk = Recharging::trusting(busy(site), &issuers);
    let site = unasked(desk.site.clone())
        .with("UBSCORE__CALLBACKS__TLS_CERTIFICATE_FILE", current.certificate.display())
        .with("UBSCORE__CALLBACKS__TLS_KEY_FILE", current.key.display());
    let server = site.start();
    let callbacks = server.callbacks.expect("a listener");
    let url = format!("https://{callbacks}{CARD}");
    desk.sim.done("PUT", "/sim/card/callback_url", &json!({"url": url}));
    // A GET has an answer, 405, from a server that the issuer vouches for.
    let is_shown = |issuer: &PathBuf| curl(issuer, &[&url]).0 == 0;
    let paid = || -> u64 {
        let of = |channel| {
            let labels = format!("{{channel=\"{channel}\",outcome=\"success\"}}");
            server.metric(&format!("ubscore_callbacks_total{labels}"))
        };
        of("wechat") + of("card")
    };
    let more = || {
        let known = paid();
        eventually("callbacks", || (paid() >= known + 4).then_some(()));
    };
    let orders = under_load(
        &server,
        |id| drop(desk.sim.pay(id)),
        &["wechat", "card"],
        || {
            more();
            replace(&current.certificate, &content(&next.certificate));
            server.says("cannot be used together");
            more();
            assert!(is_shown(&current.issuer) && !is_shown(&next.issuer));
            replace(&current.key, &content(&next.key));
            eventually("the new certificate", || is_shown(&next.issuer).then_some(()));
            more();
        },
    );
    assert!(orders >= 12, "{orders} orders");
    let credits = "SELECT count(*) FROM external_operations WHERE idem_key LIKE 'recharge/%'";
    assert_eq!(site.sql_value(credits), orders.to_string());
    site.assert_verified();
}
