//! The runbook, command by command: every command in `docs/runbook.md` is run as printed there.
//!
//! Bash runs a block marked `sh` in the directory of `ubscore.toml`. `sh exits N` has to end with
//! N. `sh serves` starts the service and leaves it running; `sh stops` ends it. A block marked
//! `text` behind it is the expected output: each line in this order, `…` for anything. [`stage`]
//! prepares the fault that a chapter needs.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Hold, Request, Server, Site, Way, crowd, eventually, segments, send};

const RUNBOOK: &str = "docs/runbook.md";

/// The chapters' commands and their expected output.
pub(crate) struct Block {
    pub(crate) chapter: String,
    line: usize,
    pub(crate) mark: String,
    pub(crate) text: String,
}

/// Every fenced block of a page, with its chapter.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&file).expect("the page");
    let (mut chapter, mut found, mut open) = (String::new(), Vec::<Block>::new(), false);
    for (index, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some(mark), false) => {
                let (chapter, mark, text) = (chapter.clone(), mark.to_owned(), String::new());
                found.push(Block { chapter, line: index + 1, mark, text });
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => {
                let block = found.last_mut().expect("one is open");
                block.text += line;
                block.text += "\n";
            }
            (None, false) => {
                if let Some(title) = line.strip_prefix("## ") {
                    title.clone_into(&mut chapter);
                }
            }
        }
    }
    found
}

/// Whether `said` is `want`, in which `…` is anything.
fn matches(said: &str, want: &str) -> bool {
    let mut parts = want.trim_end().split('…');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = said.trim_end().strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Fails unless each line that a block marked `text` expects was printed, in this order. `next`:
/// the block behind the commands; another one expects nothing.
pub(crate) fn assert_printed(next: Option<&Block>, said: &str, place: &str) {
    let Some(expected) = next.filter(|block| block.mark == "text") else { return };
    let mut lines = said.lines();
    for want in expected.text.lines() {
        let found = lines.any(|line| matches(line, want));
        assert!(found, "{want}\nis not what is printed. {place}");
    }
}

/// Fails unless a block's commands exited with `code` and printed the expected output.
fn assert_did(all: &[Block], index: usize, code: i32, output: &Output) {
    let block = &all[index];
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    let place = format!("line {}, in {:?}:\n{}{said}{why}", block.line, block.chapter, block.text);
    assert_eq!(output.status.code(), Some(code), "{place}");
    assert_printed(all.get(index + 1), &said, &place);
}

/// Runs every block of the runbook with a mark as printed, against a process that runs. `ops`: its
/// operators' listener. `names`: the variables of the commands. Returns the number of blocks.
pub(crate) fn run_blocks(mark: &str, ops: SocketAddr, names: &[(&str, &str)]) -> usize {
    let (all, mut run) = (blocks(RUNBOOK), 0);
    for (index, block) in all.iter().enumerate().filter(|(_, block)| block.mark == mark) {
        let here = format!("--dev --ops http://{ops}");
        let line = block.text.replace("--config ubscore.toml", &here);
        let line = line.replace(ADDRESSES[1], &ops.to_string());
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &line]);
        command.env("PATH", path()).envs(names.iter().copied());
        assert_did(&all, index, 0, &command.output().expect("bash"));
        run += 1;
    }
    run
}

/// The directory of the commands, with their configuration and data.
struct Desk {
    site: Site,
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
    server: Option<Server>,
    /// Keeps transfers from ending.
    hold: Option<Hold>,
}

const SECRET: &str = "a secret that only the runbook knows";
/// The addresses in the runbook, and their replacements in the test.
const ADDRESSES: [&str; 2] = ["127.0.0.1:8080", "127.0.0.1:9090"];

/// Addresses without a listener. If another process takes one, the test fails and names it.
fn free_addresses() -> [String; 2] {
    let listeners = ADDRESSES.map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").to_string())
}

impl Desk {
    fn new() -> Desk {
        let site = Site::new();
        // Assets, and two users with money on both sides.
        let server = site.start();
        for user in [1001, 1002] {
            assert_eq!(server.transfer(user, Way::ToSpot, "1000").status, 200);
        }
        site.wait_for_rest();
        server.stop();
        let directory = site.data_dir.with_extension("desk");
        fs::create_dir(&directory).expect("a directory");
        fs::rename(&site.data_dir, directory.join("data")).expect("moved");
        let site = site.with_data_dir(&directory.join("data"));
        let desk =
            Desk { environment: vec![("PATH", path())], directory, server: None, hold: None, site };
        desk.configure("ubscore.toml", "data", &desk.site.url(), &free_addresses());
        desk
    }

    fn configure(&self, file: &str, data_dir: &str, postgres: &str, listen: &[String; 2]) {
        let [http, ops] = listen;
        let text = format!(
            "data_dir = \"{data_dir}\"\n\
             [http]\nlisten = \"{http}\"\ntransfer_wait_ms = 5000\nheader_read_timeout_ms = 60000\n\
             [ops]\nlisten = \"{ops}\"\n\
             [auth]\nsecret = \"{SECRET}\"\n\
             [postgres]\nurl = \"{postgres}\"\nlock_timeout_ms = 100\nconnect_timeout_ms = 30000\n\
             statement_timeout_ms = 20000\nidle_in_transaction_timeout_ms = 20000\n\
             [wal]\nsegment_bytes = 65536\n\
             [engine]\naccounts_max = 10000\noutcomes_max = 100000\n\
             [coordinator]\nbackoff_base_ms = 20\nbackoff_cap_ms = 500\nadapter_timeout_ms = 20000\n\
             [conservation]\nevery_ms = 100\n\
             [alert]\nstuck_ms = 1000\n"
        );
        fs::write(self.directory.join(file), text).expect("written");
    }

    /// The configured address of the public listener.
    fn http(&self) -> SocketAddr {
        let text = fs::read_to_string(self.directory.join("ubscore.toml")).expect("text");
        let listen = text.lines().find_map(|line| line.strip_prefix("listen = "));
        listen.expect("an address").trim_matches('"').parse().expect("an address")
    }

    fn bash(&self, text: &str) -> Output {
        let listen = fs::read_to_string(self.directory.join("ubscore.toml")).expect("text");
        let mut listen = listen.lines().filter_map(|line| line.strip_prefix("listen = "));
        let text = ADDRESSES.iter().fold(text.to_owned(), |text, address| {
            text.replace(address, listen.next().expect("two").trim_matches('"'))
        });
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &text]).current_dir(&self.directory);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.output().expect("bash")
    }

    fn serve(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["serve", "--config", "ubscore.toml"]).current_dir(&self.directory);
        self.server = Some(Server::start(command));
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// Posts a transfer, with any outcome; returns its name.
    fn transfer(&self, user: u64, way: Way, amount: &str) -> String {
        let output = self.bash(&format!("ubscore token --user {user} --config ubscore.toml"));
        let token = String::from_utf8(output.stdout).expect("text");
        let body = way.body("USDT", amount);
        let path = "/api/v1/internal_transfer";
        let request = Request { body: Some(&body), ..Request::new(token.trim(), "POST", path) };
        send(self.http(), &request).expect("an answer").req_id()
    }

    /// Prepares the fault, or its end, that a block needs.
    fn stage(&mut self, chapter: &str, mark: &str) {
        match (chapter, mark) {
            ("Is it well?", "start") => self.serve(),
            ("A transfer does not arrive", "start") => {
                self.hold = Some(self.site.hold("UPDATE ON balances_tb", "TRUE"));
                let stuck = |index| self.transfer([1001, 1002][index], Way::ToFunding, "10");
                let names = ["REQ_ID", "OTHER_REQ_ID"].into_iter();
                let named = names.zip(crowd(2, stuck)).collect::<Vec<_>>();
                self.environment.extend(named);
                let listed = "ubscore transfer list --stuck --config ubscore.toml";
                eventually("both stuck transfers", || {
                    let said = String::from_utf8(self.bash(listed).stdout).expect("text");
                    (said.matches("TARGET_PENDING").count() == 2).then_some(())
                });
            }
            ("What happened to a user's money", "start") => self.rest(),
            ("The process has ended", "torn") => {
                let (_, last) = segments(&self.site).pop().expect("a segment");
                let mut bytes = fs::read(&last).expect("readable");
                let end = bytes.iter().rposition(|byte| *byte != 0).expect("a record") + 1;
                let end = end.next_multiple_of(8);
                bytes[end..end + 17].fill(0xff);
                fs::write(&last, bytes).expect("written");
            }
            ("An asset cannot be read", "start") => {
                self.stop();
                self.site.sql(
                    "ALTER TABLE assets_tb DROP CONSTRAINT assets_tb_min_transfer_amount_check; \
                     INSERT INTO assets_tb VALUES (9, 'TEN', 2, 1, TRUE, 0, 10000)",
                );
                self.serve();
            }
            ("The log is damaged", "damaged") => self.damage(),
            ("The log is lost", "lost") => {
                self.rest();
                self.stop();
                for directory in [self.site.log_dir(), self.site.snapshot_dir()] {
                    drop(fs::remove_dir_all(directory));
                }
            }
            ("It has halted", "changed") => {
                self.site.sql("UPDATE balances_tb SET available = available + 1e8 WHERE user_id = 1002 AND asset_id = 3");
                eventually("a halt", || (self.server.as_ref()?.ready() == 503).then_some(()));
            }
            ("It has halted", "repaired") => {
                self.site.sql("UPDATE balances_tb SET available = available - 1e8 WHERE user_id = 1002 AND asset_id = 3");
            }
            ("PostgreSQL is lost, or older than the log", "older") => {
                self.transfer(1001, Way::ToSpot, "5");
                self.rest();
                self.stop();
                self.site = self.site.with_fresh_database();
                self.configure("ubscore.toml", "data", &self.site.url(), &free_addresses());
            }
            ("Backup and restore", "start") => {
                let restored = self.site.with_fresh_database();
                self.configure("restored.toml", "restored", &restored.url(), &free_addresses());
            }
            _ => {}
        }
    }

    fn rest(&mut self) {
        drop(self.hold.take());
        self.site.wait_for_rest();
    }

    /// Damages a record in the middle of the log, before some later ones.
    fn damage(&mut self) {
        let users = [1001, 1002];
        for _ in 0..5 {
            for user in users {
                self.transfer(user, Way::ToSpot, "2");
            }
        }
        self.rest();
        self.stop();
        let dump = self.bash("ubscore wal dump data --format json --op DEPOSIT");
        let dump = String::from_utf8(dump.stdout).expect("text");
        let records: Vec<Value> =
            dump.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let record = &records[records.len() - 5];
        let number = |key: &str| record[key].as_u64().expect("a number");
        let path = self.site.log_dir().join(format!("segment-{:016x}.wal", number("segment")));
        let mut bytes = fs::read(&path).expect("readable");
        let at = usize::try_from(number("offset")).expect("small") + 50;
        bytes[at] ^= 0xff;
        self.environment.push(("FIRST_BAD", number("sequence").to_string()));
        fs::write(&path, bytes).expect("written");
    }
}

/// Puts the commands' own directory first in the path.
fn path() -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_ubscore")).parent().expect("a directory").display();
    let others = std::env::var("PATH").unwrap_or_default();
    format!("{own}:{others}")
}

/// Goal: the runbook alone is enough for an operator, and correct. Method: see above.
#[test]
fn every_command_of_the_runbook_does_what_it_says() {
    let blocks = blocks(RUNBOOK);
    let (mut desk, mut chapter) = (Desk::new(), "");
    let mut commands = 0;
    for (index, block) in
        blocks.iter().enumerate().filter(|(_, block)| block.mark.starts_with("sh"))
    {
        let marks: Vec<&str> = block.mark.split(' ').skip(1).collect();
        if block.chapter != chapter {
            desk.stage(&block.chapter, "start");
            chapter = &block.chapter;
        }
        for mark in &marks {
            desk.stage(&block.chapter, mark);
        }
        if marks.contains(&"serves") {
            desk.stop();
            desk.serve();
            continue;
        }
        let code = marks
            .iter()
            .position(|mark| *mark == "exits")
            .map_or(0, |at| marks[at + 1].parse().expect("a code"));
        assert_did(&blocks, index, code, &desk.bash(&block.text));
        commands += 1;
        if marks.contains(&"stops") {
            desk.server = None;
        }
    }
    assert!(commands > 30, "{commands}");
}
