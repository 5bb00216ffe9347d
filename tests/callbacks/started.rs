use std::net::TcpStream;

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A site with one channel of cards by its configuration, and the keys in files.
fn configured(site: Site, keys: &[(&str, &str)]) -> Site {
    let file = |name: &str, text: &str| {
        let path = site.fresh_path(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let mut all = vec![
        ("RECHARGE__ENABLED", "true".to_owned()),
        ("RECHARGE__DEPLOYMENT", "test".to_owned()),
        ("RECHARGE__PROOF_SECRET", "0123456789abcdef0123456789abcdef".to_owned()),
        ("CALLBACKS__LISTEN", "127.0.0.1:0".to_owned()),
        ("CHANNELS__CARD__KIND", "stripe".to_owned()),
        ("CHANNELS__CARD__ASSET", "CNY".to_owned()),
        ("CHANNELS__CARD__CURRENCY", "CNY".to_owned()),
        ("CHANNELS__CARD__MINOR_DIGITS", "2".to_owned()),
        ("CHANNELS__CARD__MAX", "50000".to_owned()),
        ("CHANNELS__CARD__BASE_URL", "http://127.0.0.1:9".to_owned()),
        ("CHANNELS__CARD__API_KEY_FILE", file("api-key", "sk_test_1")),
        ("CHANNELS__CARD__WEBHOOK_SECRET_FILE", file("webhook-secret", "whsec_1")),
    ];
    for (name, value) in keys {
        all.retain(|(known, _)| known != name);
        all.push((name, (*value).to_owned()));
    }
    all.into_iter().fold(site, |site, (name, value)| site.with(&format!("UBSCORE__{name}"), value))
}

/// Goal: a channel that cannot work refuses the start by the name of its key. Method: each mistake
/// in a configuration that starts without it.
#[test]
fn a_channel_that_cannot_work_refuses_the_start_by_its_key() {
    let site = Site::new();
    let empty = site.fresh_path("empty");
    fs::write(&empty, "").expect("written");
    let empty = empty.display().to_string();
    let cases: [(&[(&str, &str)], &str); 9] = [
        (
            &[("CHANNELS__CARD__BASE_URL", "http://192.0.2.1")],
            "channels.card.base_url = http://192.0.2.1: must be https",
        ),
        (&[("CHANNELS__CARD__BASE_URL", "https://h/path")], "channels.card.base_url = "),
        (&[("CHANNELS__CARD__API_KEY_FILE", &empty)], "channels.card.api_key_file is empty"),
        (
            &[("CHANNELS__CARD__WEBHOOK_SECRET_FILE", &empty)],
            "channels.card.webhook_secret_file is empty",
        ),
        (&[("CHANNELS__CARD__ASSET", "NONE")], "channels.card.asset = \"NONE\""),
        (&[("CHANNELS__CARD__MINOR_DIGITS", "3")], "channels.card.minor_digits = 3"),
        (&[("CHANNELS__CARD__MAX", "0.001")], "channels.card.max = \"0.001\""),
        (&[("CHANNELS__CARD__KIND", "paypal")], "channels.card.kind: unknown variant"),
        (&[("CHANNELS__OTHER__KIND", "stripe")], "channels.other."),
    ];
    for (keys, why) in cases {
        let (code, said) = configured(site.clone(), keys).start_refused();
        assert_eq!(code, 2, "{keys:?}: {said}");
        assert!(said.contains(why), "{keys:?}: {said}");
    }
    let server = configured(site.clone(), &[]).start();
    let shop = Shop { site: site.clone(), server };
    let letter = signed_by("whsec_1", now_s(), &succeeded("pi_1", ""));
    assert_eq!(shop.post(CARD, &letter).status, 204);
    shop.server.stop();
    // The name belongs to this merchant for ever.
    let other = configured(site.clone(), &[("CHANNELS__CARD__LIVEMODE", "true")]);
    let (code, said) = other.start_refused();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("channels.card = stripe/live/own: must be stripe/test/own"), "{said}");
    let session = site.session();
    for change in ["UPDATE channels_tb SET merchant = 'x'", "DELETE FROM channels_tb"] {
        assert_eq!(session.sql_refused(change), "UB003", "{change}");
    }
    assert_eq!(
        site.sql("SELECT name, merchant, paused FROM channels_tb"),
        [["card", "stripe/test/own", "f"]]
    );
}

/// Goal: keys of a channel change while it runs, and no callback under either is lost. Method: the
/// file of the secret changes, with the earlier one beside it, and then without; a file that holds
/// none changes nothing.
#[test]
fn keys_of_a_channel_are_read_again() {
    let site = Site::new();
    let previous = site.fresh_path("previous");
    fs::write(&previous, "").expect("written");
    let secret = site.fresh_path("secret");
    fs::write(&secret, "whsec_1").expect("written");
    let keys = [
        ("CHANNELS__CARD__WEBHOOK_SECRET_FILE", secret.display().to_string()),
        ("CHANNELS__CARD__PREVIOUS_WEBHOOK_SECRET_FILE", previous.display().to_string()),
        ("RELOAD__EVERY_MS", "100".to_owned()),
    ];
    let keys = keys.each_ref().map(|(name, value)| (*name, value.as_str()));
    let site = configured(site, &keys);
    let shop = Shop { server: site.start(), site };
    let status =
        |secret: &str| shop.post(CARD, &signed_by(secret, now_s(), &succeeded("pi_1", ""))).status;
    assert_eq!((status("whsec_1"), status("whsec_2")), (204, 401));
    fs::write(&previous, "whsec_1").expect("written");
    fs::write(&secret, "whsec_2").expect("written");
    eventually("the new secret", || (status("whsec_2") == 204).then_some(()));
    assert_eq!(status("whsec_1"), 204, "the earlier one counts beside it");
    fs::write(&secret, "").expect("written");
    shop.server.says("channels.card.webhook_secret_file is empty");
    assert_eq!((status("whsec_1"), status("whsec_2")), (204, 204));
    fs::write(&secret, "whsec_2").expect("written");
    fs::write(&previous, "").expect("written");
    eventually("the end of the earlier one", || (status("whsec_1") == 401).then_some(()));
    assert_eq!(status("whsec_2"), 204);
}

/// Goal: the simulator lives as long as its server. Method: it is killed and comes back at the same
/// address; then the server is killed without a chance to clean up, and the simulator is gone.
#[test]
fn the_simulator_lives_as_long_as_its_server() {
    let shop = Shop::open();
    let address = shop.server.simulator.expect("a simulator");
    let parent = shop.server.pid();
    let children = format!("/proc/{parent}/task");
    let child = eventually("a child", || {
        let of = |entry: io::Result<fs::DirEntry>| {
            let list = fs::read_to_string(entry.ok()?.path().join("children")).ok()?;
            list.split_whitespace().next().and_then(|pid| pid.parse::<i32>().ok())
        };
        fs::read_dir(&children).ok()?.find_map(of)
    });
    let pid = Pid::from_raw(child).expect("a process");
    kill_process(pid, Signal::KILL).expect("our grandchild");
    shop.server.says("the channel simulator has ended");
    eventually("its return", || TcpStream::connect(address).ok());
    shop.order_there("shop-1");
    let Shop { server, site } = shop;
    server.kill();
    eventually("its end", || TcpStream::connect(address).is_err().then_some(()));
    // Keys and proof secret stay.
    let secret = fs::read(site.data_dir.join("channel-sim/proof_secret")).expect("a file");
    let shop = Shop::at(site);
    assert_eq!(fs::read(shop.path("proof_secret")).expect("a file"), secret);
    assert_eq!(shop.post(CARD, &shop.card(&succeeded("pi_1", ""))).status, 204);
}
