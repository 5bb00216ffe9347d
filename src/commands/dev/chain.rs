//! The children of `serve --dev --chain`: a chain of this machine, and one node of the transaction
//! manager with a signer.
//!
//! The chain mines a block a second; the fourth one behind a payment makes it final. Its coins are
//! worth nothing, and its keys are public.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::child::{KeptChild, started};
use crate::config::Config;
use crate::config::secret::Secret;
use crate::environment;

/// The path of the chain's program where `make need-anvil` puts it.
const PROGRAM: &str = "target/anvil/anvil";
/// The variable with another path.
const PROGRAM_VARIABLE: &str = "UBSCORE_ANVIL";
/// Runs a command that does not end with its standard input, and ends it then.
const WITH_STDIN: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{ cat <&3; kill "$child"; } >/dev/null 2>&1 &
exec 3<&-
wait "$child"
"#;
/// The number of the chain.
const CHAIN_ID: &str = "31337";
/// The time of block 0, 2026-01-01. anvil makes a block 0 at each start, and keeps all of them in
/// its state: only equal ones leave the chain's identity as it was.
const GENESIS_TIME: &str = "1767225600";
/// The line with the chain's address begins so.
const LISTENING: &str = "Listening on ";
/// The beginning of the node's ready line.
const READY: &str = "ubscore ready txm=";

/// The first account of the chain, which has 10,000 coins.
const SIGNER: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
/// The second one.
const PAYEE: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
/// The key of the first account. Every chain of this kind prints it, so one round is enough.
const KEY_FILE: &str = r#"{"version":3,"id":"3198bc9c-6672-5ab3-d995-4942343ae5b6",
"address":"f39fd6e51aad88f6f4ce6ab8827279cfffb92266","crypto":{"cipher":"aes-128-ctr",
"cipherparams":{"iv":"00000000000000000000000000000000"},
"ciphertext":"c3d936945533d81eaedf0ca3e33496bc545b82b8b248f3e23cf8ed98bf144211",
"kdf":"pbkdf2","kdfparams":{"c":1,"dklen":32,"prf":"hmac-sha256",
"salt":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"},
"mac":"381ba32186fb2bf9e786167d00faebef670cbc05e0bd552bc2a2dcb4d216b1de"}}
"#;
const PASSWORD: &str = "development";

/// The running chain and, once PostgreSQL is there, the node. Dropping it ends both.
pub struct TestChain {
    // The first field is dropped first: the node ends before its chain.
    node: Option<KeptChild>,
    _chain: KeptChild,
    directory: PathBuf,
    address: SocketAddr,
}

impl TestChain {
    /// Starts the chain, with its state below the data directory.
    ///
    /// # Errors
    /// Its program is missing, or it does not start.
    pub fn start(config: &Config) -> anyhow::Result<TestChain> {
        let directory = config.data_dir.join("chain");
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(directory.join("keys"))
            .with_context(|| format!("make {}", directory.display()))?;
        let program = environment::path(PROGRAM_VARIABLE).unwrap_or_else(|| PROGRAM.into());
        ensure!(
            program.is_file(),
            "the test chain is missing at {}; run `make need-anvil`, or name a copy of anvil by \
             {PROGRAM_VARIABLE}",
            program.display()
        );
        let (child, address) = spawn_chain(&program, &directory, 0).context("start the chain")?;
        let place = directory.clone();
        let again = move || Ok(spawn_chain(&program, &place, address.port())?.0);
        let chain = KeptChild::keep("the test chain", child, again)?;
        Ok(TestChain { node: None, _chain: chain, directory, address })
    }

    /// Starts the node on this database, adds its signer, and prints its addresses. Returns the
    /// guide to it.
    ///
    /// # Errors
    /// The node does not start, or it does not take the signer.
    pub fn serve(&mut self, config: &Config, postgres: &Secret) -> anyhow::Result<String> {
        let postgres = config.txm.postgres_url.as_ref().unwrap_or(postgres);
        let files =
            [("postgres_url", postgres.expose()), ("password", PASSWORD), ("keys/dev", KEY_FILE)];
        for (name, text) in files {
            let path = self.directory.join(name);
            write_private(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let (place, chain) = (self.directory.clone(), self.address);
        let start = move |listen: [SocketAddr; 2]| spawn_node(&place, chain, listen);
        let listen = [config.txm.listen, config.txm.ops_listen];
        let (child, at) = start(listen).context("start the node of the test chain")?;
        let again = move || start(at).map(|(child, _)| child);
        self.node = Some(KeptChild::keep("the node of the test chain", child, again)?);
        let [clients, ops] = at;
        add_signer(ops).context("add the signer of the test chain")?;
        // If stdout is closed, the service goes on.
        let chain = self.address;
        drop(writeln!(
            io::stdout().lock(),
            "ubscore chain ready rpc={chain} txm={clients} ops={ops}"
        ));
        guide(clients, ops)
    }
}

/// Starts the chain at a port; 0: any free one.
fn spawn_chain(program: &Path, directory: &Path, port: u16) -> anyhow::Result<(Child, SocketAddr)> {
    let mut command = Command::new("sh");
    environment::clean(&mut command).env("HOME", directory);
    command.args(["-c", WITH_STDIN, "sh"]).arg(program);
    command.args(["--host", &Ipv4Addr::LOCALHOST.to_string(), "--port", &port.to_string()]);
    command.args(["--chain-id", CHAIN_ID, "--block-time", "1", "--slots-in-an-epoch", "2"]);
    command.args(["--timestamp", GENESIS_TIME]);
    command.arg("--state").arg(directory.join("state.json")).args(["--state-interval", "1"]);
    command.arg("--cache-path").arg(directory);
    started(&mut command, |line| line.strip_prefix(LISTENING)?.parse().ok())
}

/// Starts the node; returns it with the addresses of its listeners. Its times fit the chain's.
fn spawn_node(
    directory: &Path,
    chain: SocketAddr,
    listen: [SocketAddr; 2],
) -> anyhow::Result<(Child, [SocketAddr; 2])> {
    let mut command = ubscore()?;
    command.args(["txm", "serve", "--dev", "--until-stdin-ends"]);
    let [clients, ops] = listen.map(|address| address.to_string());
    command.args(["--listen", &clients, "--ops-listen", &ops]);
    command.envs([
        ("UBSCORE__TXM__NODE_ID", "dev"),
        ("UBSCORE__TXM__SHUTDOWN_TIMEOUT_MS", "1000"),
        ("UBSCORE__TXM__CHAIN__CHAIN_ID", CHAIN_ID),
        ("UBSCORE__TXM__CHAIN__POLL_MS", "200"),
        ("UBSCORE__TXM__LEASE__DURATION_MS", "2000"),
        ("UBSCORE__TXM__LEASE__RENEW_INTERVAL_MS", "500"),
        ("UBSCORE__TXM__LEASE__SKEW_MS", "200"),
        ("UBSCORE__TXM__CONFIRMATIONS__REQUIRED", "2"),
    ]);
    command.env("UBSCORE__TXM__CHAIN__RPC_URLS", format!("http://{chain}"));
    command.env("UBSCORE__DATA_DIR", directory.join("node"));
    command.env("UBSCORE__TXM__POSTGRES_URL_FILE", directory.join("postgres_url"));
    command.env("UBSCORE__TXM__SIGNERS__KEYSTORE_DIR", directory.join("keys"));
    command.env("UBSCORE__TXM__SIGNERS__PASSWORD_FILE", directory.join("password"));
    started(&mut command, |line| {
        let (clients, ops) = line.strip_prefix(READY)?.split_once(" ops=")?;
        Some([clients.parse().ok()?, ops.parse().ok()?])
    })
}

/// Adds the signer, unless it is there from an earlier start.
fn add_signer(ops: SocketAddr) -> anyhow::Result<()> {
    let ops = format!("http://{ops}");
    let list = said(&["signer", "list", "--dev", "--ops", &ops, "--format", "json"])?;
    let known: Result<Vec<Value>, _> = list.lines().map(serde_json::from_str).collect();
    let known = known.context("read the list of signers")?;
    if known.iter().all(|row| row["signer"] != SIGNER) {
        let reason = "the first account of the test chain";
        said(&["signer", "add", SIGNER, "--reason", reason, "--dev", "--ops", &ops])?;
    }
    Ok(())
}

/// The first payment, for the guide of the first minutes.
fn guide(clients: SocketAddr, ops: SocketAddr) -> anyhow::Result<String> {
    let token =
        ["token", "--txm", "--service", "dev", "--signers", SIGNER, "--ttl", "24h", "--dev"];
    let token = said(&token)?;
    let program =
        env::current_exe().map_or("ubscore".to_owned(), |path| path.display().to_string());
    let api = format!("http://{clients}/api/v1");
    let ask = "curl -s -H \"Authorization: Bearer $TXM\"";
    let payload = format!(r#"{{"to":"{PAYEE}","value":"1000000000000000000"}}"#);
    let body = format!(r#"{{"signer":"{SIGNER}","requestId":"first","payload":{payload}}}"#);
    Ok([
        "",
        "A payment on a test chain, with coins that are worth nothing: send it, and wait until it is final:",
        &format!("  export TXM={}", token.trim()),
        &format!("  {ask} -H 'Content-Type: application/json' {api}/tx \\"),
        &format!("    -d '{body}'"),
        &format!("  {ask} '{api}/tx/by-request?signer={SIGNER}&requestId=first&waitMs=8000'"),
        &format!("  {program} signer list --dev --ops http://{ops}"),
    ]
    .join("\n"))
}

/// This program, with a clean environment.
fn ubscore() -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe().context("find this program")?);
    environment::clean(&mut command);
    Ok(command)
}

/// Runs a command of this program; returns the text that it prints.
fn said(arguments: &[&str]) -> anyhow::Result<String> {
    let output = ubscore()?.args(arguments).output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ubscore {}: {}", arguments[..2].join(" "), why.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Writes a file that only its owner may read.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_file_name(".draft");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&draft, path)
}
