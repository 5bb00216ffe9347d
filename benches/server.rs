//! The release binary on a PostgreSQL of the bench's own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use ubscore::postgres::embedded::Embedded;

/// `ubscore serve`, stopped in order when dropped, and its PostgreSQL with it.
pub(crate) struct Server {
    process: Child,
    pub(crate) http: SocketAddr,
    pub(crate) ops: SocketAddr,
    /// Kept open: the server's later output must find a reader.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Serves on new addresses, with its data in `data_dir` and its Funding in `postgres`. `more`:
    /// further arguments. Returns the listener of callbacks too; `None`: it has no channels.
    pub(crate) fn start(
        data_dir: &Path,
        postgres: &Embedded,
        more: &[&str],
    ) -> anyhow::Result<(Server, Option<SocketAddr>)> {
        let log = data_dir.join("serve.log");
        let mut process = Command::new(env!("CARGO_BIN_EXE_ubscore"))
            .args(["serve", "--dev", "--postgres", &postgres.url()])
            .args(["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .args(more)
            .env("UBSCORE__CALLBACKS__LISTEN", "127.0.0.1:0")
            // All clients of a bench have one address.
            .env("UBSCORE__HTTP__CONNECTIONS_PER_ADDRESS_MAX", "1024")
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("start ubscore")?;
        let mut stdout = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        // The channels of a simulator are announced first.
        while stdout.read_line(&mut line)? > 0 && line.starts_with("ubscore channel-sim") {
            line.clear();
        }
        let addresses = line
            .trim_end()
            .strip_prefix("ubscore ready http=")
            .and_then(|rest| rest.split_once(" ops="))
            .and_then(|(http, rest)| {
                let (ops, callbacks) = match rest.split_once(" callbacks=") {
                    Some((ops, callbacks)) => (ops, Some(callbacks.parse().ok()?)),
                    None => (rest, None),
                };
                Some((http.parse().ok()?, ops.parse().ok()?, callbacks))
            });
        let Some((http, ops, callbacks)) = addresses else {
            let status = process.wait()?;
            bail!("ubscore serve: {status}\n{}", fs::read_to_string(log)?);
        };
        Ok((Server { process, http, ops, _stdout: stdout }, callbacks))
    }

    /// The server's process.
    pub(crate) fn pid(&self) -> i32 {
        Pid::from_child(&self.process).as_raw_nonzero().get()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.process);
        if let Err(error) = kill_process(pid, Signal::TERM) {
            eprintln!("ubscore cannot be stopped: {error}");
            return;
        }
        match self.process.wait() {
            Ok(status) if status.success() => {}
            ended => eprintln!("ubscore ended: {ended:?}"),
        }
    }
}
