//! Faults of the network between a server and its PostgreSQL.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::Site;

/// The sender of the bytes that a [`Proxy`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    Client,
    Server,
}

/// The treatment of the bytes that a [`Proxy`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    All,
    /// Forwards none of them, and the connection stays.
    Nothing,
    /// Forwards this many of them, and then closes both ends.
    Cut(usize),
}

/// A COMMIT on the wire, in the request as well as in the answer.
pub(crate) const COMMIT: &[u8] = b"COMMIT\0";
/// The server is ready for more, outside of any transaction.
const IDLE: &[u8] = b"Z\0\0\0\x05I";
/// The row that a flight returns, with the begin of the message behind it.
const WRITTEN: &[u8] = b"writtenC";

/// Whether the server reports a commit: of an explicit COMMIT, or of a flight.
pub(crate) fn tells_of_a_commit(bytes: &[u8]) -> bool {
    let flown = place(bytes, WRITTEN).is_some() && place(bytes, IDLE).is_some();
    place(bytes, COMMIT).is_some() || flown
}

/// The begin of `word` in `bytes`.
pub(crate) fn place(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

/// The begin of a flight's statement, in the message that prepares it.
const FLIGHT: &[u8] = b"\0-- One flight, in one statement";

/// The statements of flights that clients have prepared, by name.
#[derive(Default)]
pub(crate) struct Flights(Mutex<Vec<Vec<u8>>>);

impl Flights {
    /// Whether a client's bytes carry out a flight. Its statement may be prepared in them.
    pub(crate) fn is_sent(&self, bytes: &[u8]) -> bool {
        let mut names = self.0.lock().expect("not poisoned");
        if let Some(end) = place(bytes, FLIGHT) {
            // Such as s12.
            let begin = bytes[..end].iter().rposition(|byte| *byte == b's').expect("a name");
            names.push([&[0], &bytes[begin..end], &[0]].concat());
        }
        // Behind the name of a portal, which is empty.
        names.iter().any(|name| place(bytes, name).is_some())
    }
}

/// Sits between a client and PostgreSQL, on a socket of its own, and drops bytes as configured.
pub(crate) struct Proxy {
    pub(crate) url: String,
    open: Arc<Mutex<Open>>,
    _directory: tempfile::TempDir,
}

#[derive(Default)]
struct Open {
    refuses: bool,
    ends: Vec<UnixStream>,
}

impl Open {
    fn cut(&mut self) {
        for end in self.ends.drain(..) {
            // It may be closed already.
            end.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.open.lock().expect("not poisoned").cut();
    }
}

impl Proxy {
    pub(crate) fn start(
        site: &Site,
        passing: impl Fn(Speaker, &[u8]) -> Passing + Send + Sync + 'static,
    ) -> Proxy {
        let url = site.url();
        let (_, rest) = url.split_once("host=").expect("a socket");
        let (behind, _) = rest.split_once('&').expect("a user");
        // Below 107 bytes, as a socket's path must be.
        let directory = tempfile::Builder::new().prefix("ubproxy").tempdir().expect("a directory");
        let socket = |directory: &Path| directory.join(".s.PGSQL.5432");
        let listener = UnixListener::bind(socket(directory.path())).expect("a socket");
        let front = url.replacen(behind, directory.path().to_str().expect("text"), 1);
        let (behind, passing) = (socket(Path::new(behind)), Arc::new(passing));
        let open: Arc<Mutex<Open>> = Arc::default();
        let opened = Arc::clone(&open);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&behind)) else {
                    continue;
                };
                let handle = |end: &UnixStream| end.try_clone().expect("a handle");
                let (from, to) = (handle(&client), handle(&server));
                let mut open = opened.lock().expect("not poisoned");
                open.ends.extend([handle(&client), handle(&server)]);
                if open.refuses {
                    open.cut();
                }
                drop(open);
                let of_client = Arc::clone(&passing);
                thread::spawn(move || relay(from, to, |bytes| of_client(Speaker::Client, bytes)));
                let of_server = Arc::clone(&passing);
                thread::spawn(move || {
                    relay(server, client, |bytes| of_server(Speaker::Server, bytes))
                });
            }
        });
        Proxy { url: front, open, _directory: directory }
    }

    /// A proxy that ends the connection instead of every `nth` answer to a COMMIT, while the flag
    /// is set; with the count of lost answers.
    pub(crate) fn losing(site: &Site, nth: usize) -> (Proxy, Arc<AtomicBool>, Arc<AtomicUsize>) {
        let loses = Arc::new(AtomicBool::new(false));
        let (commits, lost) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (active, counter) = (Arc::clone(&loses), Arc::clone(&lost));
        let proxy = Proxy::start(site, move |speaker, bytes| {
            let commit = speaker == Speaker::Server && tells_of_a_commit(bytes);
            if commit
                && active.load(Ordering::Relaxed)
                && commits.fetch_add(1, Ordering::Relaxed) % nth == nth - 1
            {
                counter.fetch_add(1, Ordering::Relaxed);
                return Passing::Cut(0);
            }
            Passing::All
        });
        (proxy, loses, lost)
    }

    /// Closes every connection, and each new one, until [`Proxy::come_back`].
    pub(crate) fn refuse(&self) {
        let mut open = self.open.lock().expect("not poisoned");
        open.refuses = true;
        open.cut();
    }

    /// Open connections are closed; new ones are forwarded.
    pub(crate) fn come_back(&self) {
        let mut open = self.open.lock().expect("not poisoned");
        open.cut();
        open.refuses = false;
    }
}

/// Forwards bytes as long as allowed; then closes both ends.
fn relay(mut from: UnixStream, mut to: UnixStream, passing: impl Fn(&[u8]) -> Passing) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let (passed, goes_on) = match passing(&buffer[..length]) {
            Passing::All => (length, true),
            Passing::Nothing => (0, true),
            Passing::Cut(passed) => (passed, false),
        };
        if to.write_all(&buffer[..passed]).is_err() || !goes_on {
            break;
        }
    }
    for end in [from, to] {
        // The other direction may have closed it already.
        end.shutdown(Shutdown::Both).ok();
    }
}
