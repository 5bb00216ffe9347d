//! An address of callbacks that stays while servers die behind it.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::Server;

/// An address that stays, before the listener of callbacks of a server that is started again and
/// again.
pub(crate) struct Door {
    address: SocketAddr,
    behind: Arc<Mutex<Option<SocketAddr>>>,
}

impl Door {
    /// Opens one that leads nowhere yet.
    pub(crate) fn open() -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let behind: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let now = Arc::clone(&behind);
        thread::spawn(move || {
            for channel in listener.incoming().map_while(Result::ok) {
                let to = *now.lock().expect("no panic");
                // A dead server: the channel's connection is closed, and it comes again.
                let Some(Ok(server)) = to.map(TcpStream::connect) else { continue };
                let handle = |end: &TcpStream| end.try_clone().expect("a handle");
                let (from, back) = (handle(&server), handle(&channel));
                thread::spawn(move || pass(channel, server));
                thread::spawn(move || pass(from, back));
            }
        });
        Door { address, behind }
    }

    /// Its `http://` URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Leads to a server from now on; `None`: to none.
    pub(crate) fn leads_to(&self, server: Option<&Server>) {
        *self.behind.lock().expect("no panic") = server.and_then(|server| server.callbacks);
    }
}

/// Passes bytes on until one end closes.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    // Either end may have gone.
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Write));
}
