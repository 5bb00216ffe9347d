//! The cluster's folder: which version has made it, how it is made, and how a program is given it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::process::Command;
use tokio::time::{sleep, timeout};
use tracing::info;

use super::programs::Binaries;
use super::user::ServerUser;
use super::{Error, POLL, ROLE, file, tail};
use crate::environment;

/// How the server names the open directory it inherits.
pub(super) const CLUSTER_ARGUMENT: &str = "/proc/self/fd/9";

/// Moves the directory from standard input, the only descriptor the standard library passes on, to
/// one that neither `initdb` nor its children use for themselves.
const INHERIT_CLUSTER: &str = r#"exec 9<&0 </dev/null && exec "$@""#;

/// An `initdb` whose folder is being removed fails at its next file.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// The major version that made the cluster; `None` where there is no cluster yet.
pub(super) fn major(cluster: &Path) -> Result<Option<u32>, Error> {
    let path = cluster.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|error| {
            file("understand", &path)(io::Error::new(io::ErrorKind::InvalidData, error))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file("read", &path)(error)),
    }
}

/// Runs `initdb` beside the cluster's place and moves the result there: a kill in between leaves a
/// folder that the next start removes, never half a cluster.
pub(super) async fn create(
    binaries: &Binaries,
    data_dir: &Path,
    cluster: &Path,
    user: ServerUser,
) -> Result<(), Error> {
    let staging = data_dir.join("postgres.new");
    remove_staging(&staging).await?;
    info!(cluster = %cluster.display(), major = binaries.major(), "creating the embedded cluster");
    fs::DirBuilder::new().mode(0o700).create(&staging).map_err(file("create", &staging))?;
    if user.drop {
        std::os::unix::fs::chown(&staging, Some(user.user), Some(user.group))
            .map_err(file("change the owner of", &staging))?;
    }
    let initdb = binaries.program("initdb");
    let output = child_command(&initdb, open_directory(&staging, OFlags::empty())?, user)
        .args(["--username", ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C"])
        .arg("--data-checksums")
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| Error::Spawn { program: initdb, source })?;
    if !output.status.success() {
        remove_staging(&staging).await?;
        let printed = [output.stdout, output.stderr].concat();
        return Err(Error::Initdb { status: output.status, output: tail(&printed) });
    }
    fs::rename(&staging, cluster).map_err(file("move the new cluster to", cluster))?;
    fs::File::open(data_dir)
        .and_then(|directory| directory.sync_all())
        .map_err(file("sync", data_dir))
}

/// Removes what an interrupted creation left. An `initdb` that outlived its killed parent may still
/// be writing there: it ends when its folder is gone, and until then it adds files to be removed.
async fn remove_staging(staging: &Path) -> Result<(), Error> {
    let removed = timeout(REMOVE_LIMIT, async {
        loop {
            match fs::remove_dir_all(staging) {
                Ok(()) => return Ok(()),
                Err(_) if !staging.exists() => return Ok(()),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound
                    ) =>
                {
                    sleep(POLL).await;
                }
                Err(error) => return Err(file("remove", staging)(error)),
            }
        }
    });
    removed.await.map_err(|_| Error::Busy { path: staging.to_owned() })?
}

/// A child that finds `directory` as [`CLUSTER_ARGUMENT`], as `user`, in no folder of ours.
pub(super) fn child_command(program: &Path, directory: OwnedFd, user: ServerUser) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", INHERIT_CLUSTER, "sh"]).arg(program).args(["-D", CLUSTER_ARGUMENT]);
    command.current_dir("/").stdin(Stdio::from(directory));
    // The server would take defaults from our environment, and keep our secrets in its own.
    environment::clean(command.as_std_mut());
    if user.drop {
        // The standard library drops the supplementary groups with the user.
        command.uid(user.user).gid(user.group);
    }
    command
}

/// A directory that is to be given to a program, or looked at without the way there changing.
pub(super) fn open_directory(path: &Path, flags: OFlags) -> Result<OwnedFd, Error> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| file("open", path)(error.into()))
}
