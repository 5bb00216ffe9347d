//! The runbook, command by command: what stands in `docs/runbook.md` is run as it stands there.
//!
//! A block marked `sh` is run by bash where `ubscore.toml` lies; `sh exits N` has to end with N; `sh serves` starts the service and
//! leaves it running. A block marked `text` behind it is what it prints: each line in this order, `…` for anything. What a
//! chapter needs to have gone wrong is done before it by [`stage`].

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::{Hold, Server, Site, Way, eventually};

/// The chapters' commands and what is said about them.
struct Block {
    chapter: String,
    line: usize,
    mark: String,
    text: String,
}

/// Every fenced block, with the chapter it stands in.
fn blocks(text: &str) -> Vec<Block> {
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

/// Where the commands are run: a directory with the configuration that they read, and what they need to know.
struct Desk {
    site: Site,
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
    server: Option<Server>,
    /// What keeps a transfer from ending.
    hold: Option<Hold>,
}

const SECRET: &str = "a secret that only the runbook knows";
const USER: u64 = 1001;

/// An address nobody listens on; a test that is unlucky finds it taken, and says so.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}
