//! `ubscore doctor --txm`: the findings about a node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::node::{Node, command};
use crate::harness::{Chain, Site, said};

/// The variables of a command.
type Variables = Vec<(OsString, OsString)>;

fn variables(command: &Command) -> Variables {
    let pair = |(name, value): (&OsStr, Option<&OsStr>)| Some((name.into(), value?.into()));
    command.get_envs().filter_map(pair).collect()
}

/// Runs the doctor; returns its exit code, and each verdict with its finding.
fn doctor(variables: &Variables, more: &[(&str, &str)]) -> (i32, BTreeMap<String, [String; 2]>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["doctor", "--txm", "--dev", "--format", "json"]);
    command.envs(variables.iter().cloned()).envs(more.iter().copied());
    let (code, out, why) = said(&command.output().expect("the binary"));
    let finding = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("JSON");
        let part = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        (part("check"), [part("verdict"), part("found")])
    };
    assert_eq!(why, "", "{out}");
    (code, out.lines().map(finding).collect())
}

/// Goal: the doctor names each fault of a node before its start does. Method: a database before and
/// behind the first start, a table outside of the schema, the core's role, another chain, and a key
/// file that is open to others.
#[test]
fn the_doctor_finds_the_faults_of_a_node() {
    let (site, chain) = (Site::new(), Chain::start());
    let all = variables(&command(&site, &chain, "txm-a"));
    let verdict = |found: &BTreeMap<String, [String; 2]>, check: &str| found[check][0].clone();
    let (code, found) = doctor(&all, &[]);
    assert_eq!((code, verdict(&found, "txm schema").as_str()), (0, "warn"), "{found:?}");
    for check in ["configuration", "txm chain id", "txm role", "txm endpoint", "txm keys"] {
        assert_eq!(verdict(&found, check), "ok", "{check}: {found:?}");
    }
    assert!(!found.contains_key("core role"), "{found:?}");

    drop(Node::start(&site, &chain, "txm-a", &[]));
    site.sql("CREATE TABLE public.balances (units BIGINT)");
    let url = site.url();
    let (code, found) = doctor(&all, &[("UBSCORE__POSTGRES__URL", &url)]);
    assert_eq!(code, 0, "{found:?}");
    for (check, expected, words) in [
        ("txm schema", "ok", "version 2"),
        ("txm chain id", "ok", "the database is of chain 31337"),
        ("txm role", "warn", "public.balances"),
        ("core role", "warn", "txm."),
        ("txm endpoint", "ok", "answers for chain 31337"),
        ("txm keys", "ok", "2 keys"),
        ("postgres fsync", "ok", "on"),
    ] {
        let [verdict, told] = &found[check];
        assert!(verdict == expected && told.contains(words), "{check}: {found:?}");
    }

    let (code, found) = doctor(&all, &[("UBSCORE__TXM__CHAIN__CHAIN_ID", "1")]);
    assert_eq!(code, 1);
    for check in ["txm chain id", "txm endpoint"] {
        assert_eq!(verdict(&found, check), "bad", "{check}: {found:?}");
    }
    let (code, found) = doctor(&all, &[("UBSCORE__TXM__CHAIN__QUORUM", "2")]);
    assert_eq!(code, 1);
    assert!(found["configuration"][1].contains("txm.chain.quorum = 2"), "{found:?}");

    let keys = all.iter().find(|(name, _)| name == "UBSCORE__TXM__SIGNERS__KEYSTORE_DIR");
    let key = PathBuf::from(&keys.expect("a directory").1).join("one");
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).expect("our own file");
    let (code, found) = doctor(&all, &[]);
    assert!(code == 1 && found["txm keys"][1].contains("mode 644"), "{found:?}");
}
