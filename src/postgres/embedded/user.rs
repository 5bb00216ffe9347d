//! Who the server runs as: never root.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Error, file};

/// Who the server runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerUser {
    /// Its number.
    pub(super) user: u32,
    /// Its group's number.
    pub(super) group: u32,
    /// We are root and must become this user for the child.
    pub(super) drop: bool,
}

impl ServerUser {
    /// The owner of an existing cluster; else `postgres` or `nobody` when we are root; else us.
    pub(super) fn choose(cluster: &Path) -> Result<ServerUser, Error> {
        let user = rustix::process::geteuid();
        let owner = match fs::metadata(cluster) {
            Ok(metadata) => Some((metadata.uid(), metadata.gid())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(file("inspect", cluster)(error)),
        };
        match owner {
            _ if !user.is_root() => {
                let user = user.as_raw();
                if let Some((owner, _)) = owner.filter(|(owner, _)| *owner != user) {
                    return Err(Error::Owner { cluster: cluster.to_owned(), owner, user });
                }
                let group = rustix::process::getegid().as_raw();
                Ok(ServerUser { user, group, drop: false })
            }
            // The owner stays what it was when, say, a package has since brought `postgres`.
            Some((user, group)) if user != 0 => Ok(ServerUser { user, group, drop: true }),
            _ => {
                let path = Path::new("/etc/passwd");
                let passwd = fs::read_to_string(path).map_err(file("read", path))?;
                ["postgres", "nobody"]
                    .iter()
                    .find_map(|name| user_in(&passwd, name))
                    .map(|(user, group)| ServerUser { user, group, drop: true })
                    .ok_or(Error::NoUser)
            }
        }
    }
}

/// The user and group numbers of `name` in the text of passwd(5). Root is nobody's answer.
fn user_in(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let user: u32 = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (user != 0).then_some((user, group))
    })
}

/// Gives the cluster and all in it to the server's user, after a copy by root for example.
pub(super) fn change_owner(path: &Path, user: ServerUser) -> Result<(), Error> {
    let metadata = fs::symlink_metadata(path).map_err(file("inspect", path))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(file("list", path))? {
            change_owner(&entry.map_err(file("list", path))?.path(), user)?;
        }
    }
    // The folder last: until then the next start sees root as its owner and does this again.
    std::os::unix::fs::lchown(path, Some(user.user), Some(user.group))
        .map_err(file("change the owner of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_user_is_never_root() {
        let passwd = "root:x:0:0::/root:/bin/sh\npostgres:x:101:104::/var:/bin/sh\ntoor:x:0:0:::\n";
        assert_eq!(user_in(passwd, "postgres"), Some((101, 104)));
        assert_eq!(user_in(passwd, "toor"), None);
        assert_eq!(user_in(passwd, "nobody"), None);
    }
}
