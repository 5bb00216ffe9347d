//! The release binary with a PostgreSQL of its own, and a connection to that.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::NoTls;

/// `ubscore serve`, stopped in order when dropped, and its PostgreSQL with it.
pub(crate) struct Server {
    process: Child,
    pub(crate) http: SocketAddr,
    pub(crate) ops: SocketAddr,
    /// Kept open: the server's later output must find a reader.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Serves on new addresses, with its data in `data_dir`.
    pub(crate) fn start(data_dir: &Path) -> anyhow::Result<Server> {
        let log = data_dir.join("serve.log");
        let mut process = Command::new(env!("CARGO_BIN_EXE_ubscore"))
            .args(["serve", "--dev", "--postgres", "embedded"])
            .args(["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("start ubscore")?;
        let mut stdout = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let addresses = line
            .trim_end()
            .strip_prefix("ubscore ready http=")
            .and_then(|rest| rest.split_once(" ops="))
            .and_then(|(http, ops)| Some((http.parse().ok()?, ops.parse().ok()?)));
        let Some((http, ops)) = addresses else {
            let status = process.wait()?;
            bail!("ubscore serve: {status}\n{}", fs::read_to_string(log)?);
        };
        Ok(Server { process, http, ops, _stdout: stdout })
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

/// A second connection to the server that ubscore has started.
pub(crate) async fn connect_postgres(data_dir: &Path) -> anyhow::Result<tokio_postgres::Client> {
    let mut config = tokio_postgres::Config::new();
    config.host_path(socket_directory(data_dir)?).user("postgres").dbname("ubscore");
    let (client, connection) = config.connect(NoTls).await.context("connect to PostgreSQL")?;
    // It ends with the client; an error reaches the client's next statement.
    drop(tokio::spawn(connection));
    Ok(client)
}

/// The version, and the settings that decide the time of a commit.
pub(crate) async fn settings(postgres: &tokio_postgres::Client) -> anyhow::Result<String> {
    let mut settings = postgres.query_one("SHOW server_version", &[]).await?.get::<_, String>(0);
    for name in
        ["fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers"]
    {
        let row = postgres.query_one(&format!("SHOW {name}"), &[]).await?;
        settings += &format!(", {name}={}", row.get::<_, &str>(0));
    }
    Ok(settings)
}

/// The directory of that server's socket.
pub(crate) fn socket_directory(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let pid_file = fs::read_to_string(data_dir.join("postgres").join("postmaster.pid"))
        .context("read postmaster.pid")?;
    let line = pid_file.lines().nth(4).context("postmaster.pid names no socket")?;
    Ok(line.into())
}
