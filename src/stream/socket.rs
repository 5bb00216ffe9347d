//! The listeners: how they are bound, and their connections.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;

use crate::http::tls::Tls;

/// The owner and the group of the process may connect.
const MODE: u32 = 0o660;

/// A listener of venues.
pub enum Listener {
    /// A Unix socket. Its file is removed with it.
    Unix(Socket),
    /// TCP with TLS.
    Tls(TcpListener, Arc<Tls>),
}

/// A connection of a venue, before its first byte.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tls(TcpStream, TlsAcceptor, SocketAddr),
}

/// A bound Unix socket.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Binds a Unix socket with mode 0660. A file that an earlier process has left is replaced.
    ///
    /// # Errors
    /// The path cannot be used; a living process listens there.
    pub fn bind(path: &Path) -> io::Result<Socket> {
        match Probe::connect(path) {
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "a process listens there"));
            }
            // No file, or one without a process.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
        // Under its name only with its mode: no connection comes in before.
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let listener = UnixListener::bind(&new)?;
        fs::set_permissions(&new, Permissions::from_mode(MODE))?;
        fs::rename(&new, path)?;
        Ok(Socket { listener, path: path.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A file that stays is replaced by the next start.
        fs::remove_file(&self.path).ok();
    }
}

impl Listener {
    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Unix(socket) => Ok(Accepted::Unix(socket.listener.accept().await?.0)),
            Listener::Tls(listener, tls) => {
                let (stream, peer) = listener.accept().await?;
                // A batch of answers is one write: waiting for more data only delays it.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tls(stream, tls.acceptor(), peer))
            }
        }
    }
}
