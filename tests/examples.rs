//! A client as in `examples/`: money moves once, also if the server is killed meanwhile.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{COIN, Server, SetAtEnd, Site, crowd, said, token};

const USERS: [u64; 4] = [2001, 2002, 2003, 2004];

/// One of the examples, run from its command line.
fn example(language: &str) -> Command {
    match language {
        "Python" => {
            let mut python = Command::new("python3");
            python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/transfer.py"));
            python
        }
        _ => {
            let binaries = Path::new(env!("CARGO_BIN_EXE_ubscore")).parent().expect("a directory");
            let example = binaries.join("examples/transfer");
            assert!(example.is_file(), "run: cargo build --example transfer --features crash");
            Command::new(example)
        }
    }
}

fn transfer(language: &str, user: u64, url: &str, arguments: &[&str]) -> Output {
    let mut command = example(language);
    command.env("UBSCORE_TOKEN", token(user, None)).args(["--url", url]).args(arguments);
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Goal: a client that follows the examples has moved every amount once. Method: four clients, two
/// of each language, make one transfer after another, while the server is killed and started again
/// at the same address. Each reports that the money has arrived, and both sides add up to the unit.
/// No POST waits for the end.
#[test]
fn clients_move_every_amount_once_while_the_server_is_killed() {
    let site = Site::new().with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 0);
    let server = site.start();
    for user in USERS {
        server.deposit(user, "USDT", "1000");
    }
    let (http, ops) = (server.http.to_string(), server.ops.to_string());
    let url = format!("http://{http}");
    let killed_enough = AtomicBool::new(false);
    let (server, moved) = thread::scope(|scope| {
        let mut server = server;
        let clients = scope.spawn(|| {
            crowd(USERS.len(), |caller| {
                let language = ["Python", "Rust"][caller % 2];
                let mut moved = 0;
                while moved < 4 || !killed_enough.load(Ordering::Relaxed) {
                    let cid = format!("example-{moved}");
                    let arguments = ["FUNDING", "SPOT", "USDT", "1.5", "--cid", &cid];
                    let (code, out, err) =
                        said(&transfer(language, USERS[caller], &url, &arguments));
                    assert_eq!(code, 0, "{language}: {out} {err}");
                    assert!(err.contains(&cid), "{language}: {err}");
                    let answer: Value = serde_json::from_str(&out).expect("JSON");
                    assert_eq!(
                        (&answer["state"], &answer["cid"]),
                        (&"COMMITTED".into(), &cid.into())
                    );
                    moved += 1;
                }
                moved
            })
        });
        let end = SetAtEnd(&killed_enough);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(500));
            server.kill();
            thread::sleep(Duration::from_millis(200));
            server = Server::start(site.command_on(&http, &ops));
        }
        drop(end);
        (server, clients.join().expect("every client"))
    });
    site.wait_for_rest();
    for (user, moved) in USERS.into_iter().zip(moved) {
        let balance = server.usdt(user);
        assert_eq!(balance.spot, Some(moved * 3 * COIN / 2), "user {user}: {moved} transfers");
        assert_eq!(balance.sum(), 1_000 * COIN, "user {user}");
    }
    site.assert_conserved(&server);
}

/// Goal: a client can trust the exit code.
#[test]
fn the_exit_code_tells_what_has_happened_to_the_money() {
    let site = Site::new();
    let server = site.start();
    server.deposit(USERS[0], "USDT", "10");
    let url = format!("http://{}", server.http);
    let at = |language: &str, arguments: &[&str]| {
        let (code, out, _) = said(&transfer(language, USERS[0], &url, arguments));
        (code, serde_json::from_str::<Value>(&out).unwrap_or_default())
    };
    for language in ["Python", "Rust"] {
        let (code, answer) = at(language, &["SPOT", "FUNDING", "USDT", "11", "--cid", language]);
        assert_eq!((code, &answer["state"]), (1, &"FAILED".into()), "{language}: {answer}");
        let (code, answer) = at(language, &["FUNDING", "SPOT", "USDT", "1,5"]);
        assert_eq!((code, &answer["code"]), (1, &"INVALID_AMOUNT".into()), "{language}: {answer}");
        assert_eq!(at(language, &["FUNDING"]).0, 2, "{language}");
        let mut stranger = example(language);
        stranger.env("UBSCORE_TOKEN", "no token").args(["--url", &url]);
        stranger.args(["FUNDING", "SPOT", "USDT", "1"]);
        let (code, out, _) = said(&stranger.output().expect("it runs"));
        assert!(code == 3 && out.contains("UNAUTHORIZED"), "{language}: {code} {out}");
    }
    server.stop();
    for language in ["Python", "Rust"] {
        let arguments = ["FUNDING", "SPOT", "USDT", "1", "--patience", "1", "--cid", "late"];
        let (code, answer) = at(language, &arguments);
        assert_eq!((code, &answer["cid"]), (3, &"late".into()), "{language}: {answer}");
    }
}

/// Goal: the book stays short enough to be read.
#[test]
fn the_book_has_at_most_350_lines() {
    let lines = include_str!("../examples/book.rs").lines().count();
    assert!(lines <= 350, "{lines} lines");
}
