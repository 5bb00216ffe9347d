//! The server's socket, and the directory around it that only the server's user can enter.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::debug;

use super::cluster::open_directory;
use super::user::ServerUser;
use super::{Error, file};

/// Only names the socket file: the server has no TCP listener.
pub(super) const PORT: u16 = 5432;

/// The kernel refuses a socket path of 108 bytes or more.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where the socket's directory is made: short, and on every system.
const SOCKET_PARENT: &str = "/tmp";

/// The directory of a cluster's socket. Named by the folder's identity, not its path: a server whose data directory was
/// removed keeps its inode, and so cannot be in the way of the next one at the same path.
pub(super) fn directory(cluster: &Metadata, user: ServerUser) -> PathBuf {
    let (device, inode) = (cluster.dev(), cluster.ino());
    Path::new(SOCKET_PARENT).join(format!("ubscore-{}-{device:x}-{inode:x}", user.user))
}

/// Makes the socket's directory, or makes sure that the one there was made by us or the server's
/// user and that no other can enter it: anyone may plant one where it lies.
pub(super) fn make_directory(directory: &Path, user: ServerUser) -> Result<(), Error> {
    let socket_bytes = path(directory).as_os_str().len();
    assert!(socket_bytes <= SOCKET_PATH_BYTES_MAX, "{} bytes: {directory:?}", socket_bytes);
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(file("create", directory)(error));
        }
        _ => {}
    }
    let found = fs::File::from(open_directory(directory, OFlags::NOFOLLOW)?);
    let metadata = found.metadata().map_err(file("inspect", directory))?;
    let (owner, mode) = (metadata.uid(), metadata.permissions().mode() & 0o7777);
    let us = rustix::process::geteuid().as_raw();
    if (owner != user.user && owner != us) || mode & 0o077 != 0 {
        let directory = directory.to_owned();
        return Err(Error::SocketDirectory { directory, owner, mode, owner_expected: user.user });
    }
    // Ours, just made or left so by a crash at this point.
    if owner != user.user {
        std::os::unix::fs::fchown(&found, Some(user.user), Some(user.group))
            .map_err(file("change the owner of", directory))?;
    }
    found
        .set_permissions(fs::Permissions::from_mode(0o700))
        .map_err(file("set the mode of", directory))
}

/// Leaves nothing in the shared folder. A directory that stays is found, checked and used again.
pub(super) fn remove_directory(directory: &Path) {
    if let Err(error) = fs::remove_dir(directory) {
        debug!(directory = %directory.display(), %error, "the socket directory stays");
    }
}

/// The socket itself.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(format!(".s.PGSQL.{PORT}"))
}

/// The server's setting that puts it there, which no other cluster's server has.
pub(super) fn setting(directory: &Path) -> String {
    format!("unix_socket_directories={}", directory.display())
}
