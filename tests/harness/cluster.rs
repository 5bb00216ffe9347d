//! A PostgreSQL for one test alone: killed, frozen, copied, started again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};
use ubscore::postgres::embedded::{Embedded, Options};

use super::site::connect;
use super::{block_on, eventually, run, unique};

/// A PostgreSQL for one test alone.
pub(crate) struct Cluster {
    options: Options,
    pub(super) url: String,
    server: Mutex<Option<Embedded>>,
}

impl Cluster {
    pub(super) fn start() -> Cluster {
        let directory = run().directory.join(format!("cluster-{}", unique()));
        let options =
            Options { connections_max: 40, shared_buffers_mib: 32, ..Options::new(directory) };
        let server = block_on(Embedded::start(&options)).expect("PostgreSQL");
        Cluster { options, url: server.url(), server: Mutex::new(Some(server)) }
    }

    /// All of its processes: the first, and those that it has started.
    fn pids(&self) -> Vec<Pid> {
        let server = self.server.lock().expect("not poisoned");
        let first = server.as_ref().expect("it runs").pid();
        let is_child = |stat: &str| {
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<i32>().ok()?;
            (parent == first).then_some(())
        };
        let process = |entry: io::Result<fs::DirEntry>| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            if pid != first {
                is_child(&stat)?;
            }
            Pid::from_raw(pid)
        };
        fs::read_dir("/proc").expect("processes").filter_map(process).collect()
    }

    /// The same as plain numbers.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.pids().into_iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()).collect()
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.options.data_dir.join("postgres.log")).expect("its log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a signal to all of it.
    pub(crate) fn signal(&self, signal: Signal) {
        for pid in self.pids() {
            // Some may have ended.
            kill_process(pid, signal).ok();
        }
    }

    /// SIGKILL to all of it at once; returns when it is gone.
    pub(crate) fn kill(&self) {
        let pids = self.pids();
        self.signal(Signal::KILL);
        drop(self.server.lock().expect("not poisoned").take());
        // The first process of the system reaps those with a dead parent.
        let alive = |pid: &Pid| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        eventually("PostgreSQL to be gone", || (!pids.iter().any(alive)).then_some(()));
    }

    /// A copy of its files as after a crash at this moment, or as on an asynchronous replica that
    /// is slightly behind.
    pub(crate) fn copy_files(&self) -> PathBuf {
        self.signal(Signal::STOP);
        let copy = self.copy_stopped();
        self.signal(Signal::CONT);
        copy
    }

    fn copy_stopped(&self) -> PathBuf {
        let copy = run().directory.join(format!("replica-{}", unique()));
        let copied = Command::new("cp").arg("-a").arg(&self.options.data_dir).arg(&copy).status();
        assert!(copied.expect("cp").success());
        fs::remove_file(copy.join("postgres/postmaster.pid")).expect("it was running");
        copy
    }

    /// Makes a copy begin a history of its own at its start, like a promoted replica.
    pub(crate) fn promote(copy: &Path) {
        let cluster = copy.join("postgres");
        fs::write(cluster.join("recovery.signal"), "").expect("written");
        let settings = cluster.join("postgresql.auto.conf");
        let mut text = fs::read_to_string(&settings).expect("settings");
        text.push_str("restore_command = '/bin/false'\n");
        fs::write(&settings, text).expect("written");
    }

    /// Fails over to a replica that is complete.
    pub(crate) fn fail_over(&self) {
        self.signal(Signal::STOP);
        let copy = self.copy_stopped();
        self.kill();
        Cluster::promote(&copy);
        self.take_over(&copy);
    }

    /// Starts a copy of the files beside the original server.
    pub(crate) fn start_beside(copy: &Path) -> Cluster {
        let options = Options { connections_max: 40, shared_buffers_mib: 32, ..Options::new(copy) };
        let server = block_on(Embedded::start(&options)).expect("PostgreSQL");
        let url = server.url();
        wait_for_primary(&url);
        Cluster { options, url, server: Mutex::new(Some(server)) }
    }

    /// The directory of its socket.
    pub(crate) fn socket_directory(&self) -> String {
        let host = self.url.split("host=").nth(1).and_then(|rest| rest.split('&').next());
        host.expect("our own URL").to_owned()
    }

    /// Replaces its files by a copy, after [`Cluster::kill`], and starts it.
    pub(crate) fn take_over(&self, copy: &Path) {
        // The directory itself stays: clients find the socket by it.
        let entries = |directory: &Path| {
            let entries = fs::read_dir(directory.join("postgres")).expect("a cluster");
            entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
        };
        for entry in entries(&self.options.data_dir) {
            let removed =
                if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
            removed.expect("removed");
        }
        for entry in entries(copy) {
            let name = entry.file_name().expect("a name");
            let place = self.options.data_dir.join("postgres").join(name);
            fs::rename(&entry, place).expect("renamed");
        }
        self.restart();
    }

    /// Starts it again after [`Cluster::kill`].
    pub(crate) fn restart(&self) {
        let server = block_on(Embedded::start(&self.options)).expect("PostgreSQL");
        assert_eq!(server.url(), self.url, "it is found where it was");
        wait_for_primary(&self.url);
        *self.server.lock().expect("not poisoned") = Some(server);
    }
}

/// Waits until a server that recovers takes writes.
fn wait_for_primary(url: &str) {
    eventually("the end of its recovery", || {
        let recovers = block_on(async {
            let client = connect(url).await;
            let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
            row.is_ok_and(|row| row.get(0))
        });
        (!recovers).then_some(())
    });
}
