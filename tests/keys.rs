//! The keys of tokens: the supported kinds, the choice of the key for a token, and changes of keys
//! that refuse no valid token.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use rustix::process::Signal;
use serde_json::json;
use ubscore::config::auth::Auth;
use ubscore::config::secret::Secret;
use ubscore::http::auth::sign;

use crate::harness::{
    Issuer, Request, Server, Site, assert_refused, eventually, now_s, replace, send, while_watched,
};

const USER: u64 = 1001;
const BALANCES: &str = "/api/v1/balances";
/// Longer than any test.
const NEVER_MS: u64 = 3_600_000;

/// A site with tokens signed by `algorithm`, and the file of its public keys.
fn site(algorithm: Algorithm, content: &str) -> (Site, PathBuf) {
    let site = Site::new();
    let file = site.fresh_path("keys");
    fs::write(&file, content).expect("written");
    let site = site
        .with("UBSCORE__AUTH__ALGORITHM", format!("{algorithm:?}"))
        .with("UBSCORE__AUTH__PUBLIC_KEY_FILE", file.display())
        .with("UBSCORE__RELOAD__EVERY_MS", 100);
    (site, file)
}

/// A JWK Set of issuers and their names.
fn set(keys: &[(&Issuer, &str)]) -> String {
    let keys: Vec<_> = keys.iter().map(|(issuer, kid)| issuer.jwk(kid)).collect();
    json!({"keys": keys}).to_string()
}

fn status(server: &Server, token: &str) -> u16 {
    let reply = send(server.http, &Request::new(token, "GET", BALANCES)).expect("an answer");
    if reply.status != 200 {
        assert_refused(&reply, 401, "UNAUTHORIZED");
    }
    reply.status
}

fn wait_for(server: &Server, token: &str, wanted: u16) {
    let look = || (status(server, token) == wanted).then_some(());
    eventually("a change of keys", look);
}

#[test]
fn each_algorithm_is_served_from_pem_and_from_a_set() {
    for algorithm in [Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256] {
        let (mine, other) = (Issuer::new(algorithm), Issuer::new(algorithm));
        let (site, file) = site(algorithm, mine.public_pem());
        let server = site.start();
        assert_eq!(status(&server, &mine.token(None, USER)), 200, "{algorithm:?}");
        // PEM has no names.
        assert_eq!(status(&server, &mine.token(Some("any"), USER)), 200, "{algorithm:?}");
        assert_eq!(status(&server, &other.token(None, USER)), 401, "{algorithm:?}");

        replace(&file, &set(&[(&other, "b"), (&mine, "a")]));
        wait_for(&server, &other.token(Some("b"), USER), 200);
        assert_eq!(status(&server, &mine.token(Some("a"), USER)), 200);
        for (kid, issuer) in [(Some("b"), &mine), (Some("any"), &mine), (None, &other)] {
            assert_eq!(status(&server, &issuer.token(kid, USER)), 401, "{algorithm:?} {kid:?}");
        }
        server.stop();
    }
}

/// Goal: a change of keys accepts every token of a present key, and refuses every token of a
/// removed key, even one accepted a moment ago. Method: requests with the old token all the while,
/// without a pause.
#[test]
fn a_key_is_changed_while_requests_flow() {
    let [old, new] = [(); 2].map(|()| Issuer::new(Algorithm::EdDSA));
    let (site, file) = site(Algorithm::EdDSA, &set(&[(&old, "2025")]));
    let server = site.start();
    let (old_token, new_token) = (old.token(Some("2025"), USER), new.token(Some("2026"), USER));
    assert_eq!(status(&server, &new_token), 401);
    let old_is_good = || assert_eq!(status(&server, &old_token), 200);
    while_watched(2, old_is_good, || {
        replace(&file, &set(&[(&old, "2025"), (&new, "2026")]));
        wait_for(&server, &new_token, 200);
    });
    let new_is_good = || assert_eq!(status(&server, &new_token), 200);
    while_watched(2, new_is_good, || {
        replace(&file, &set(&[(&new, "2026")]));
        wait_for(&server, &old_token, 401);
    });
    // The name is used again, for another key. Trust belongs to the key and not to the name.
    replace(&file, &set(&[(&new, "2026"), (&Issuer::new(Algorithm::EdDSA), "2025")]));
    let read = || server.said().matches("changed=true").count();
    eventually("the third set", || (read() == 3).then_some(()));
    assert_eq!((status(&server, &old_token), status(&server, &new_token)), (401, 200));
    server.stop();
}

#[test]
fn a_bad_file_changes_nothing_and_a_hangup_reads_it_at_once() {
    let [old, new] = [(); 2].map(|()| Issuer::new(Algorithm::ES256));
    let (site, file) = site(Algorithm::ES256, &set(&[(&old, "a")]));
    let server = site.with("UBSCORE__RELOAD__EVERY_MS", NEVER_MS).start();
    let (old_token, new_token) = (old.token(Some("a"), USER), new.token(Some("b"), USER));
    let errors = || server.said().matches("the earlier content stays in force").count();
    let stranger = Issuer::new(Algorithm::EdDSA);
    let twice = set(&[(&new, "b"), (&old, "b")]);
    let bad = ["", "half of", "{", r#"{"keys":[]}"#, &set(&[(&stranger, "b")]), &twice];
    for (index, content) in bad.into_iter().enumerate() {
        replace(&file, content);
        server.signal(Signal::HUP);
        eventually("an error", || (errors() == index + 1).then_some(()));
        assert_eq!((status(&server, &old_token), status(&server, &new_token)), (200, 401));
    }
    fs::remove_file(&file).expect("removed");
    server.signal(Signal::HUP);
    eventually("an error", || (errors() == bad.len() + 1).then_some(()));
    assert_eq!((status(&server, &old_token), server.ready()), (200, 200));

    // A key of another algorithm is skipped.
    replace(&file, &set(&[(&stranger, "c"), (&new, "b")]));
    server.signal(Signal::HUP);
    wait_for(&server, &new_token, 200);
    assert_eq!(status(&server, &old_token), 401);
    server.says("a key of the set is skipped");
    server.stop();
}

#[test]
fn a_start_names_the_file_of_keys_that_it_cannot_use() {
    let stranger = Issuer::new(Algorithm::EdDSA);
    for (content, says) in [
        (stranger.public_pem(), "not a public key for Es256"),
        (&set(&[(&stranger, "a")]), "none of 1 keys fits Es256: \"a\" has another alg"),
        ("{", "not a JWK Set"),
    ] {
        let (site, file) = site(Algorithm::ES256, content);
        let (code, said) = site.start_refused();
        let named = format!("auth.public_key_file = {}: {says}", file.display());
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(&named), "{named}: {said}");
    }
}

#[test]
fn a_secret_is_changed_without_refusing_anybody() {
    let site = Site::new();
    let [secret, previous] = ["secret", "previous"].map(|name| site.fresh_path(name));
    let [old, new] = ["the old secret of this test, long enough", "and its new one, no shorter"]
        .map(|text| format!("{text:-<40}"));
    fs::write(&secret, &old).expect("written");
    fs::write(&previous, "").expect("written");
    let server = site
        .with("UBSCORE__AUTH__SECRET_FILE", secret.display())
        .with("UBSCORE__AUTH__PREVIOUS_SECRET_FILE", previous.display())
        .with("UBSCORE__RELOAD__EVERY_MS", 100)
        .start();
    let [old_token, new_token] = [&old, &new].map(|secret| {
        let auth = Auth { secret: Some(Secret::new(secret)), ..Auth::default() };
        sign(&auth, USER, None, Duration::from_secs(3_600), now_s()).expect("a token")
    });
    while_watched(
        1,
        || assert_eq!(status(&server, &old_token), 200),
        || {
            replace(&previous, &old);
            replace(&secret, &new);
            wait_for(&server, &new_token, 200);
        },
    );
    replace(&previous, "");
    wait_for(&server, &old_token, 401);
    assert_eq!(status(&server, &new_token), 200);
    server.stop();
}
