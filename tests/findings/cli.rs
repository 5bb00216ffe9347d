//! The command line and its printed texts: each defect that three new users met, played again.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use ubscore::alert::Alert;
use ubscore::config::FILE_DEFAULT;
use ubscore::http::auth::Role;

use crate::harness::{
    Reply, Request, Server, Site, Way, eventually, external, said, send, text, token,
};

const NEW: u64 = 5005;
const MAKER: u64 = 9_001;
const DEPOSITS: &str = "/admin/v1/deposits";

/// Posts a deposit with a reason as an operator.
fn deposit(server: &Server, idem_key: &str, amount: &str, reason: &str) -> Reply {
    let mut body = external(NEW, "USDT", amount, idem_key);
    body["reason"] = json!(reason);
    let token = token(MAKER, Some(Role::Admin));
    let request = Request { body: Some(&body), ..Request::new(&token, "POST", DEPOSITS) };
    send(server.ops, &request).expect("an answer")
}

/// Story: deposits refused `reason`, replays looked like first answers, and the second approver
/// read "external".
#[test]
fn an_external_operation_keeps_its_reason_and_marks_its_replay() {
    let site = Site::new();
    let server = site.start();
    let first = deposit(&server, "in-1", "3", "block 880123");
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None), "{first:?}");
    let again = deposit(&server, "in-1", "3.0", "asked again");
    assert_eq!((again.status, again.json()), (200, first.json()));
    assert_eq!(again.header("idempotent-replayed"), Some("true"), "{again:?}");
    let conflict = deposit(&server, "in-1", "4", "another amount");
    assert_eq!(conflict.refusal(), (409, "IDEM_KEY_CONFLICT".to_owned()));
    let asked =
        "SELECT actor, subject, detail, reason FROM admin_audit WHERE action = 'deposit asked'";
    let row = ["admin/9001", "in-1", "3 USDT of user 5005", "block 880123"];
    assert_eq!(site.sql(asked), [row.map(str::to_owned).to_vec()]);
    for bad in ["", "two\nlines"] {
        assert_eq!(
            deposit(&server, "in-2", "1", bad).refusal(),
            (400, "INVALID_REQUEST".to_owned())
        );
    }
    server.stop();

    let server = site.clone().with("UBSCORE__APPROVAL__REQUIRED", "external").start();
    let asked = deposit(&server, "in-3", "5", "ticket 17");
    assert_eq!(asked.status, 202, "{asked:?}");
    assert_eq!(text(&asked.json()["reason"]), "ticket 17");
    let listed = server.admin_get("/admin/v1/approvals").json();
    assert_eq!(text(&listed["approvals"][0]["reason"]), "ticket 17");
    // Replays of decided operations need no approval.
    let again = deposit(&server, "in-1", "3", "asked again");
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    site.assert_in_order(&server);
}

/// The binary with arguments, without any other configuration.
fn ubscore(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(arguments).env_remove("UBSCORE_CONFIG");
    said(&command.envs(environment.iter().copied()).output().expect("the binary"))
}

/// Story: `--user 1001` named the operator in most commands and the subject in others; a list of a
/// user's transfers printed "no transfers" although some existed.
#[test]
fn the_operator_is_as_and_a_list_says_that_it_leaves_out_the_ended() {
    let site = Site::new();
    let server = site.start();
    server.transfer_committed(1001, Way::ToSpot, "1");
    // The answer may come before PostgreSQL has the final state.
    site.wait_for_rest();
    let ops = format!("http://{}", server.ops);
    let on = |words: &[&str]| ubscore(&[words, &["--ops", &ops, "--dev"]].concat(), &[]);
    for name in ["--user", "--user-id"] {
        let (code, out, err) = on(&["transfer", "list", name, "1001"]);
        assert_eq!((code, &*out), (0, "no open transfers\n"), "{err}");
        assert_eq!(err, "open transfers only; --ended includes finished ones\n");
    }
    let (code, out, err) = on(&["transfer", "list", "--user", "1001", "--ended"]);
    assert!(code == 0 && out.contains("COMMITTED") && err.is_empty(), "{out}{err}");
    assert!(
        out.lines().next().is_some_and(|head| head.ends_with("CID") && head.contains("CREATED"))
    );
    let (code, _, err) = on(&["pauses", "--user", "7"]);
    assert!(code == 2 && err.contains("--user"), "{err}");
    let (code, _, err) = on(&["pauses", "--as", "7"]);
    assert_eq!(code, 0, "{err}");
}

/// Story: a forgotten `--config` was reported as a missing secret, and every line of the runbook
/// had to name the file.
#[test]
fn a_forgotten_configuration_is_named_and_the_environment_gives_one() {
    let own = Path::new(FILE_DEFAULT);
    assert!(!own.exists(), "this machine has a configuration of its own: {}", own.display());
    for words in [&["token", "--user", "7"][..], &["pauses"], &["serve"], &["verify"]] {
        let (code, _, err) = ubscore(words, &[]);
        assert_eq!(code, 2, "{words:?}: {err}");
        assert!(err.contains("no --config was given") && err.contains("--dev"), "{words:?}: {err}");
    }
    let site = Site::new();
    fs::create_dir_all(&site.data_dir).expect("a directory");
    let file = site.data_dir.join("ubscore.toml");
    fs::write(&file, "[auth]\nsecret = \"a secret that only this test knows, and no one else\"\n")
        .expect("written");
    let variable = [("UBSCORE_CONFIG", file.to_str().expect("text"))];
    let words = ["token", "--user", "7"];
    let (code, named, err) = ubscore(&words, &variable);
    assert_eq!(code, 0, "{err}");
    // Development signs with another secret, in spite of the variable.
    let signature = |token: &str| token.trim().rsplit('.').next().expect("a part").to_owned();
    let (code, development, err) = ubscore(&[&words[..], &["--dev"]].concat(), &variable);
    assert_eq!(code, 0, "{err}");
    assert_ne!(signature(&named), signature(&development));
    let (code, _, err) = ubscore(&words, &[("UBSCORE_CONFIG", "/nowhere/ubscore.toml")]);
    assert!(code == 2 && err.contains("/nowhere/ubscore.toml"), "{err}");
}

/// Story: with EdDSA every operator's command ended with an error that named no usable next step
/// ("EdDsa: tokens are made by the holder of the private key").
#[test]
fn with_a_public_key_a_command_asks_for_a_token_file() {
    let site = Site::new();
    fs::create_dir_all(&site.data_dir).expect("a directory");
    let file = site.data_dir.join("ubscore.toml");
    fs::write(&file, "[auth]\nalgorithm = \"EdDSA\"\npublic_key_file = \"key.pem\"\n")
        .expect("written");
    let config = file.to_str().expect("text");
    for words in [
        &["pauses"][..],
        &["halt", "--reason", "x"],
        &["resume", "--reason", "x"],
        &["account", "freeze", "1", "--reason", "x"],
        &["asset", "set", "USDT", "--min", "1", "--reason", "x"],
        &["transfer", "list"],
        &["webhook", "list"],
        &["approval", "list"],
    ] {
        let (code, _, err) = ubscore(&[words, &["--config", config]].concat(), &[]);
        assert_eq!(code, 1, "{words:?}: {err}");
        assert!(
            err.contains("give --token-file FILE") && err.contains("EdDSA"),
            "{words:?}: {err}"
        );
        let (_, _, err) =
            ubscore(&[words, &["--config", config, "--token-file", "/nowhere"]].concat(), &[]);
        assert!(err.contains("/nowhere"), "{words:?}: {err}");
    }
}

/// Story: on a suspicion of fraud while the service was down, its next start could not be halted
/// beforehand.
#[test]
fn a_service_that_is_down_is_halted_at_its_next_start() {
    let site = Site::new();
    site.start().stop();
    let data_dir = site.data_dir.to_str().expect("text");
    let address =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let ops = format!("http://{address}");
    let halt = |reason: &str, more: &[&str]| {
        let words = ["halt", "--reason", reason, "--ops", &ops, "--dev", "--data-dir", data_dir];
        ubscore(&[&words[..], more].concat(), &[])
    };
    let (code, out, err) = halt("fraud is suspected", &[]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("halted: fraud is suspected\n") && out.contains("next start is halted"),
        "{out}"
    );
    let (code, out, err) = halt("ticket 17", &["--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answer["reason"], json!("fraud is suspected; then: ticket 17"));
    let (code, _, err) = halt("two\nlines", &[]);
    assert_eq!(code, 1, "{err}");

    let server = site.start();
    assert_eq!(server.ready(), 503);
    // A file does not halt a running service that does not answer at that address: it reads the
    // file only at the start.
    let (code, _, err) = halt("once more", &[]);
    let pid = server.pid().to_string();
    assert!(code == 1 && err.contains("NOT halted") && err.contains(&pid), "{err}");
    assert_eq!(server.resume("cleared").status, 200);
    server.transfer_committed(1001, Way::ToSpot, "1");

    // Another halt keeps the first reason in force, and the answer has both.
    let ops = format!("http://{}", server.ops);
    let on = |command: &str, reason: &str| {
        ubscore(&[command, "--reason", reason, "--ops", &ops, "--dev"], &[])
    };
    assert_eq!(
        on("resume", "again"),
        (0, "nothing to do: the service is not halted\n".into(), String::new())
    );
    assert_eq!(on("halt", "one").0, 0);
    let (code, out, _) = on("halt", "two");
    assert!(
        code == 0
            && out.starts_with("halted: one\n")
            && out.contains("your reason")
            && out.contains("two"),
        "{out}"
    );
    assert_eq!(on("resume", "over"), (0, "resumed\n".into(), String::new()));
}

/// Story: a mistyped number was FROZEN, exit code 0, and made both accounts.
#[test]
fn an_unknown_user_is_frozen_only_if_asked_for() {
    let site = Site::new();
    let server = site.start();
    let ops = format!("http://{}", server.ops);
    let freeze = |more: &[&str]| {
        let words = ["account", "freeze", "99999", "--reason", "x", "--ops", &ops, "--dev"];
        ubscore(&[&words[..], more].concat(), &[])
    };
    let made = "SELECT count(*) FROM accounts_tb WHERE user_id = 99999";
    let (code, out, err) = freeze(&[]);
    assert_eq!((code, &*out), (1, ""), "{err}");
    assert!(err.contains("NOT_FOUND") && err.contains("--create"), "{err}");
    let (code, _, err) = freeze(&["--format", "json"]);
    let complaint: Value = serde_json::from_str(&err).expect("JSON");
    assert_eq!((code, &complaint["code"]), (1, &json!("NOT_FOUND")), "{err}");
    assert_eq!(site.sql_value(made), "0");
    let (code, out, err) = freeze(&["--create"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, "FUNDING of 99999: FROZEN\nSPOT of 99999: FROZEN\n");
    // Known by now; and a user of Funding alone has a Spot account to freeze.
    assert_eq!(freeze(&[]).0, 0);
    server.deposit(NEW, "USDT", "1");
    let path = format!("/admin/v1/accounts/{NEW}/SPOT/status");
    let reply = server.admin("PUT", &path, &json!({"status": "FROZEN", "reason": "x"}));
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Story: `transfer retry` of an ended transfer printed "due now", exit code 0.
#[test]
fn a_retry_of_an_ended_transfer_is_refused() {
    let site = Site::new();
    let server = site.start();
    let req_id = server.transfer_committed(1001, Way::ToSpot, "1");
    site.wait_for_rest();
    let ops = format!("http://{}", server.ops);
    let words = ["transfer", "retry", &req_id, "--reason", "x", "--ops", &ops, "--dev"];
    let (code, out, err) = ubscore(&words, &[]);
    assert_eq!((code, &*out), (1, ""), "{err}");
    assert!(
        err.contains("NOT_RESOLVABLE") && err.contains("COMMITTED: there is nothing to retry"),
        "{err}"
    );
    assert_eq!(
        site.sql_value("SELECT count(*) FROM admin_audit WHERE action = 'transfer retry'"),
        "0"
    );
}

/// Story: machines had to read the text of `verify`, `backup` and `repair`, and a refusal was text
/// in any format.
#[test]
fn verify_backup_and_repair_answer_in_json_as_well() {
    let site = Site::new();
    let server = site.start();
    server.transfer_committed(1001, Way::ToSpot, "1");
    site.wait_for_rest();
    server.stop();
    let run = |words: &[&str]| {
        let (code, out, err) =
            said(&site.tool([words, &["--format", "json"]].concat()).output().expect("the binary"));
        let objects: Vec<Value> =
            out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (code, objects, err)
    };
    let (code, objects, err) = run(&["verify"]);
    assert_eq!((code, &objects[0]["verdict"], objects.len()), (0, &json!("ok"), 1), "{err}");
    let directory = site.fresh_path("backup");
    let (code, objects, err) = run(&["backup", directory.to_str().expect("text")]);
    assert_eq!((code, &objects[0]["transfers"]), (0, &json!(1)), "{err}");
    let (code, objects, err) = run(&["backup", directory.to_str().expect("text")]);
    assert_eq!((code, objects), (2, vec![]), "{err}");
    let complaint: Value = serde_json::from_str(&err).expect("JSON");
    assert!(text(&complaint["error"]).contains("is not empty"), "{err}");
    site.sql(
        "UPDATE balances_tb SET available = available + 5e8 WHERE user_id = 1001 AND asset_id = 3",
    );
    let (code, objects, err) = run(&["verify"]);
    assert_eq!((code, objects.len()), (1, 2), "{err}");
    assert_eq!((&objects[0]["asset"], &objects[0]["difference"]), (&json!("USDT"), &json!("5")));
    let (code, objects, err) = run(&["repair", "--plan"]);
    assert_eq!((code, &objects[0]["kind"]), (1, &json!("left")), "{err}");
    assert_eq!(objects.last().expect("an end")["left"], json!(1));
    let (_, out, _) = said(&site.verify().output().expect("the binary"));
    assert!(
        out.starts_with("user 1001, USDT: Funding is 5 more than all its operations\n")
            || out.starts_with("user 1001, USDT: Funding is 5 more than its operations\n"),
        "{out}"
    );
}

/// Story: alerts named the fault and no next step. Each ends with an existing chapter, the one in
/// the runbook's own table.
#[test]
fn every_alert_ends_with_the_chapter_that_the_runbook_names_for_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let runbook = fs::read_to_string(root.join("docs/runbook.md")).expect("the runbook");
    for alert in Alert::ALL {
        let next = alert.next();
        let chapter = next.split("runbook, \"").nth(1).and_then(|rest| rest.strip_suffix('"'));
        let chapter = chapter.unwrap_or_else(|| panic!("{next}: no chapter at its end"));
        assert!(runbook.contains(&format!("\n## {chapter}\n")), "{chapter}");
        let row = runbook
            .lines()
            .find(|line| line.starts_with('|') && line.contains(&format!("`{}`", alert.name())));
        let row = row.unwrap_or_else(|| panic!("{} is not in the table", alert.name()));
        assert!(row.contains(&format!("[{chapter}](#")), "{}: {row}", alert.name());
    }
}

/// Story: alerts, halts and refusals to resume named "asset 3, difference 5.00000000 …; and 0 more"
/// without a next step.
#[test]
fn a_halt_speaks_of_symbols_and_says_what_is_next() {
    let site = Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 50);
    let server = site.start();
    site.sql(
        "UPDATE balances_tb SET available = available + 5e8 WHERE user_id = 1001 AND asset_id = 3",
    );
    eventually("the halt", || (server.ready() == 503).then_some(()));
    let wrong = "user 1001, USDT: Funding is 5 more than its operations";
    server.says(&format!("{wrong}; next: ubscore verify; runbook, \"It has halted\""));
    server.says("next=\"ubscore verify; when the cause is gone, ubscore resume");
    let ops = format!("http://{}", server.ops);
    let words = ["resume", "--reason", "x", "--ops", &ops, "--dev"];
    let (code, _, err) = ubscore(&words, &[]);
    let want = format!(
        "error: resume refused: SERVICE_HALTED: Still halted: {wrong}. Next: ubscore verify; ubscore repair --plan\n"
    );
    assert_eq!((code, err), (1, want));
    server.stop();
    // A refused start names the next step as well.
    let (code, said) = site.clone().with("UBSCORE__POSTGRES__CONNECTIONS_MAX", 0).start_refused();
    assert_eq!(code, 2, "{said}");
    let last = said.trim_end().lines().last().expect("a line");
    let next = "; next: correct the configuration, then run ubscore doctor";
    assert!(last.starts_with("error: ") && last.ends_with(next), "{said}");
}

/// Story: with the log lost and PostgreSQL alive, the refusal of a start named no next step.
#[test]
fn a_start_without_its_log_says_how_to_make_one() {
    let site = Site::new();
    site.start().stop();
    fs::remove_dir_all(site.log_dir()).expect("removed");
    fs::remove_dir_all(site.snapshot_dir()).ok();
    let (code, said) = site.start_refused();
    assert_ne!(code, 0);
    let next = said.split("; next: ").nth(1).expect("what comes next");
    assert!(next.contains("ubscore engine adopt --plan"), "{said}");
}
