//! TLS on both listeners: accepted and refused protocols, and changed certificates.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;
use serde_json::{Value, json};
use ubscore::config::auth::DEVELOPMENT_SECRET;

use crate::harness::{
    Certificate, PATIENCE, Request, Server, Site, Way, cli, curl, eventually, last_line, replace,
    said, send, token, while_watched,
};

const USER: u64 = 1001;
/// Curl's exit code for an untrusted certificate.
const UNTRUSTED: i32 = 60;
/// Longer than any test.
const NEVER_MS: u64 = 3_600_000;

/// A site with TLS on both listeners.
fn secured(site: Site, certificate: &Certificate) -> Site {
    let mut site = site;
    for section in ["HTTP", "OPS"] {
        let name = |key: &str| format!("UBSCORE__{section}__{key}");
        site = site
            .with(&name("TLS_CERTIFICATE_FILE"), certificate.certificate.display())
            .with(&name("TLS_KEY_FILE"), certificate.key.display());
    }
    site.with("UBSCORE__RELOAD__EVERY_MS", 100)
}

fn healthy(server: &Server, certificate: &Certificate) -> bool {
    let (code, output) = curl(&certificate.issuer, &[&format!("https://{}/healthz", server.ops)]);
    assert!(code == 0 || code == UNTRUSTED, "{code}: {output}");
    code == 0 && output == "ok\n"
}

/// A silent connection that the server has taken.
fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

#[test]
fn both_listeners_speak_tls_and_nothing_else() {
    let site = Site::new();
    for certificate in [Certificate::issued(&site), Certificate::self_signed(&site)] {
        let server = secured(site.clone(), &certificate).start();
        assert!(healthy(&server, &certificate));
        let authorization = format!("Authorization: Bearer {}", token(USER, None));
        let body = Way::ToSpot.body("USDT", "1").to_string();
        let url = format!("https://localhost:{}/api/v1/internal_transfer", server.http.port());
        for version in ["1.2", "1.3"] {
            let (code, output) = curl(
                &certificate.issuer,
                &[
                    "--tls-max",
                    version,
                    "--http2",
                    "-H",
                    &authorization,
                    "-H",
                    "Content-Type: application/json",
                    "-d",
                    &body,
                    "-w",
                    "\n%{http_version} %{http_code}",
                    &url,
                ],
            );
            assert_eq!((code, last_line(&output)), (0, "1.1 200"), "{output}");
        }
        // Plain HTTP gets no HTTP answer, and harms no other client.
        for address in [server.http, server.ops] {
            let token = token(USER, None);
            assert!(send(address, &Request::new(&token, "GET", "/healthz")).is_err());
        }
        let stranger = Certificate::self_signed(&site);
        assert!(!healthy(&server, &stranger) && healthy(&server, &certificate));
        server.stop();
    }
    site.assert_verified();
}

/// Goal: a certificate is replaced without a refused connection. Method: constant requests by a
/// client that trusts both; incomplete pairs and foreign keys change nothing.
#[test]
fn a_certificate_is_changed_while_requests_flow() {
    let site = Site::new();
    let [current, next] = [(); 2].map(|()| Certificate::issued(&site));
    let both = site.fresh_path("issuers");
    let content = |path| fs::read_to_string(path).expect("our own file");
    let [old_certificate, old_key] = [content(&current.certificate), content(&current.key)];
    fs::write(&both, content(&current.issuer) + content(&next.issuer).as_str()).expect("written");
    let old_issuer = Certificate {
        certificate: both.clone(),
        key: both.clone(),
        issuer: current.issuer.clone(),
    };
    let server = secured(site.clone(), &current).start();
    let url = format!("https://{}/healthz", server.ops);
    let errors = |words: &str| server.said().matches(words).count();
    while_watched(
        1,
        || assert_eq!(curl(&both, &[&url]), (0, "ok\n".to_owned())),
        || {
            // A certificate without its key: the earlier pair stays in force.
            replace(&current.certificate, &content(&next.certificate));
            eventually("an error of each", || {
                (errors("cannot be used together") >= 2).then_some(())
            });
            assert!(healthy(&server, &old_issuer) && !healthy(&server, &next));
            replace(&current.key, &content(&next.key));
            eventually("the new certificate", || healthy(&server, &next).then_some(()));
        },
    );
    assert!(!healthy(&server, &old_issuer));
    server.stop();

    // By SIGHUP alone, and back.
    let server =
        secured(site.clone(), &current).with("UBSCORE__RELOAD__EVERY_MS", NEVER_MS).start();
    replace(&current.certificate, &old_certificate);
    replace(&current.key, &old_key);
    server.signal(Signal::HUP);
    eventually("the old certificate", || healthy(&server, &old_issuer).then_some(()));
    current.replace_by(&next);
    assert!(healthy(&server, &old_issuer), "the server has not reloaded yet");
    server.stop();
}

#[test]
fn a_start_names_the_certificate_that_it_cannot_use() {
    let site = Site::new();
    let [good, other] = [(); 2].map(|()| Certificate::issued(&site));
    let nothing = site.fresh_path("nothing");
    let empty = site.fresh_path("empty");
    fs::write(&empty, "").expect("written");
    for (certificate, key, says) in [
        (
            &nothing,
            &good.key,
            format!("http.tls_certificate_file = {}: cannot be read", nothing.display()),
        ),
        (
            &empty,
            &good.key,
            format!(
                "http.tls_certificate_file = {}: no certificate in PEM format",
                empty.display()
            ),
        ),
        (
            &good.certificate,
            &empty,
            format!("http.tls_key_file = {}: no private key in PEM format", empty.display()),
        ),
        (
            &good.certificate,
            &other.key,
            format!("http.tls_key_file = {}: cannot be used together", other.key.display()),
        ),
    ] {
        let pair = Certificate {
            certificate: certificate.clone(),
            key: key.clone(),
            issuer: good.issuer.clone(),
        };
        let (code, output) = secured(site.clone(), &pair).start_refused();
        assert_eq!(code, 2, "{output}");
        assert!(output.contains(&says), "{says}: {output}");
    }
    let half = site.with("UBSCORE__OPS__TLS_KEY_FILE", good.key.display());
    let (code, output) = half.start_refused();
    assert!(code == 2 && output.contains("ops.tls_certificate_file is missing"), "{code} {output}");
}

/// Goal: a client that connects and sends nothing, or half a header, holds a place only as long as
/// a header may take, and does not delay a stop. Method: one place; each such client in turn, and
/// after it a served one.
#[test]
fn a_client_that_does_not_finish_a_handshake_gives_its_place_back() {
    let site = Site::new();
    let certificate = Certificate::issued(&site);
    let site = secured(site, &certificate)
        .with("UBSCORE__HTTP__CONNECTIONS_MAX", 1)
        .with("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 300);
    let server = site.start();
    let url = format!("https://{}/api/v1/assets", server.http);
    // The first bytes of a handshake's record: a length, and fewer bytes than that.
    for begun in [&b""[..], &[22, 3, 1, 2, 0, 1, 0]] {
        let mut silent = connect(server.http);
        silent.write_all(begun).expect("sent");
        let mut rest = Vec::new();
        silent.read_to_end(&mut rest).expect("closed by the server");
        let answered = || {
            let (code, output) = curl(&certificate.issuer, &["-w", "%{http_code}", &url]);
            (code == 0 && output.ends_with("401")).then_some(())
        };
        eventually("a place", answered);
    }
    server.stop();

    // It holds the only place until the next client comes.
    let server = site.with("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 60_000).start();
    let url = format!("https://{}/api/v1/assets", server.http);
    let _silent = connect(server.http);
    // An idle connection after its handshake, on the other listener.
    let pem = fs::read(&certificate.issuer).expect("our own file");
    let issuer = ureq::tls::Certificate::from_pem(&pem).expect("a certificate");
    let roots = ureq::tls::RootCerts::new_with_certs(&[issuer]);
    let trusting = ureq::tls::TlsConfig::builder().root_certs(roots).build();
    let idle: ureq::Agent = ureq::Agent::config_builder().tls_config(trusting).build().into();
    let mut healthy = idle.get(format!("https://{}/healthz", server.ops)).call().expect("healthy");
    assert_eq!(healthy.body_mut().read_to_string().expect("text"), "ok\n");
    let answered = || {
        let (code, output) = curl(&certificate.issuer, &["-w", "%{http_code}", &url]);
        (code == 0 && output.ends_with("401")).then_some(())
    };
    eventually("a free place", answered);
    let _silent = connect(server.http);
    let mut server = server;
    server.signal(Signal::TERM);
    let (status, output) = server.wait();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(!output.contains("did not finish in time"), "{output}");
}

/// The operator's commands over TLS: by `--ca`, by the configuration's own certificate, and refused
/// without either.
#[test]
fn operators_commands_speak_tls() {
    let site = Site::new();
    let issued = Certificate::issued(&site);
    let server = secured(site.clone(), &issued).start();
    let url = format!("https://{}", server.ops);
    let ca = issued.issuer.to_str().expect("text").to_owned();
    let run = |arguments: &[&str]| said(&cli(&[arguments, &["--dev", "--ops", &url]].concat()));
    let (code, out, why) = run(&["halt", "--reason", "a test", "--ca", &ca]);
    assert_eq!(code, 0, "{out}{why}");
    let (code, out, why) = run(&["resume", "--reason", "a test", "--ca", &ca]);
    assert_eq!(code, 0, "{out}{why}");
    let (code, out, why) = run(&["transfer", "list", "--ca", &ca]);
    assert_eq!(code, 0, "{out}{why}");

    let (code, _, why) = run(&["transfer", "list"]);
    assert!(code == 1 && why.contains("by an issuer that --ca names"), "{code} {why}");
    let (code, _, why) = run(&["transfer", "list", "--ca", "/nowhere/ca.pem"]);
    assert!(code == 1 && why.contains("/nowhere/ca.pem"), "{code} {why}");
    let plain = format!("http://{}", server.ops);
    let (code, _, why) = said(&cli(&["transfer", "list", "--dev", "--ops", &plain]));
    assert!(code == 1 && why.contains("no answer from http:"), "{code} {why}");

    let (code, _, why) = said(&cli(&["load", "--dev", "--url", &url]));
    assert!(code == 1 && why.contains("only http:// is spoken here"), "{code} {why}");
    server.stop();

    // The service's own configuration is enough.
    let own = Certificate::self_signed(&site);
    let secret: Value = json!(format!("not {DEVELOPMENT_SECRET}"));
    let server = secured(site.clone(), &own)
        .with("UBSCORE__AUTH__SECRET", secret.as_str().expect("text"))
        .start();
    let file = site.fresh_path("configuration");
    let text = format!(
        "[auth]\nsecret = {secret}\n[ops]\nlisten = \"{}\"\ntls_certificate_file = {:?}\n\
         tls_key_file = {:?}\n",
        server.ops, own.certificate, own.key
    );
    fs::write(&file, text).expect("written");
    let file = file.to_str().expect("text");
    let (code, out, why) = said(&cli(&["transfer", "list", "--config", file]));
    assert_eq!(code, 0, "{out}{why}");
    server.stop();
}
