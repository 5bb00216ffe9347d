//! PostgreSQL's programs on this machine: where they are, which version they have, and what installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::Error;
use crate::environment;

/// Where systems put the server's programs: a folder, the prefix of an entry in it that ends with
/// the major version, and the folder inside that entry.
const VERSIONED_DIRECTORIES: &[(&str, &str, &str)] = &[
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/usr/lib", "postgresql", "bin"),
    ("/usr/libexec", "postgresql", ""),
];

const PLAIN_DIRECTORIES: &[&str] = &["/usr/local/pgsql/bin"];

/// The programs of one PostgreSQL installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binaries {
    /// Their folder; absent where they are found by PATH.
    directory: Option<PathBuf>,
    /// The major version, such as 15.
    major: u32,
}

impl Binaries {
    /// The major version, such as 15.
    pub(super) fn major(&self) -> u32 {
        self.major
    }

    /// Where one of them is.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        program(self.directory.as_deref(), name)
    }
}

/// Finds `initdb` and `postgres`: in `postgres_bin` alone when given, else in the folder that
/// `pg_config` names, by PATH, then in the usual folders, newest first.
///
/// `cluster_major`: the version of an existing cluster, which only the same one can open.
///
/// # Errors
/// [`Error::NotBinaries`]: `postgres_bin` has none. [`Error::Missing`]: there are none, and how to
/// install them. [`Error::Version`]: none of the right version.
pub(super) async fn find_binaries(
    postgres_bin: Option<&Path>,
    cluster_major: Option<u32>,
) -> Result<Binaries, Error> {
    let candidates = match postgres_bin {
        Some(directory) => {
            // The children run elsewhere, so a relative folder would not be found again.
            vec![Some(directory.canonicalize().unwrap_or_else(|_| directory.to_owned()))]
        }
        None => candidate_directories().await,
    };
    let mut found = Vec::new();
    for directory in candidates {
        let Some(major) = probe(directory.as_deref()).await else { continue };
        if cluster_major.is_none_or(|wanted| wanted == major) {
            return Ok(Binaries { directory, major });
        }
        found.push(major);
    }
    found.sort_unstable();
    found.dedup();
    match (cluster_major, postgres_bin) {
        (Some(cluster_major), _) if !found.is_empty() => {
            Err(Error::Version { cluster_major, found })
        }
        (_, Some(directory)) => Err(Error::NotBinaries {
            directory: directory.to_owned(),
            install: install_here(Package::Server),
        }),
        (_, None) => Err(Error::Missing { install: install_here(Package::Server) }),
    }
}

/// Finds a client's program, such as `pg_dump`: of this major version, or else the next later one, since none can read what
/// is newer than itself. Looks in `postgres_bin` alone when given, else where the server's programs are looked for.
///
/// # Errors
/// [`Error::Program`]: there is none, and how to install it.
pub async fn find_program(
    program: &'static str,
    postgres_bin: Option<&Path>,
    at_least: u32,
) -> Result<PathBuf, Error> {
    let candidates = match postgres_bin {
        Some(directory) => vec![Some(directory.to_owned())],
        None => candidate_directories().await,
    };
    let (mut best, mut found) = (None, Vec::new());
    for directory in candidates {
        let path = self::program(directory.as_deref(), program);
        let Some(major) = output_of(&path, "--version").await.as_deref().and_then(major_of) else {
            continue;
        };
        found.push(major);
        if major >= at_least && best.as_ref().is_none_or(|(other, _)| major < *other) {
            best = Some((major, path));
        }
    }
    found.sort_unstable();
    found.dedup();
    let install = || install_here(Package::Client { major: at_least });
    best.map(|(_, path)| path).ok_or_else(|| Error::Program {
        program,
        at_least,
        found,
        install: install(),
    })
}

/// Folders to look in, best first; `None` stands for PATH.
async fn candidate_directories() -> Vec<Option<PathBuf>> {
    let mut candidates = Vec::new();
    if let Some(bindir) = output_of(Path::new("pg_config"), "--bindir").await {
        candidates.push(Some(PathBuf::from(bindir.trim_end())));
    }
    candidates.push(None);
    for (parent, prefix, inner) in VERSIONED_DIRECTORIES {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        for name in newest_first(names, prefix) {
            candidates.push(Some(Path::new(parent).join(name).join(inner)));
        }
    }
    candidates.extend(PLAIN_DIRECTORIES.iter().map(|directory| Some(PathBuf::from(directory))));
    candidates
}

/// The names that are `prefix` and a version number, the highest number first.
fn newest_first(names: impl Iterator<Item = String>, prefix: &str) -> Vec<String> {
    let mut versioned: Vec<(u32, String)> =
        names.filter_map(|name| Some((name.strip_prefix(prefix)?.parse().ok()?, name))).collect();
    versioned.sort_unstable_by(|a, b| b.cmp(a));
    versioned.into_iter().map(|(_, name)| name).collect()
}

/// The major version of the installation in `directory` (PATH when absent), if both programs run.
async fn probe(directory: Option<&Path>) -> Option<u32> {
    output_of(&program(directory, "initdb"), "--version").await?;
    major_of(&output_of(&program(directory, "postgres"), "--version").await?)
}

/// What a program prints, if it runs and succeeds; one that does not is one that is not there.
async fn output_of(program: &Path, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    environment::clean(command.as_std_mut());
    let output =
        command.arg(argument).stdin(Stdio::null()).kill_on_drop(true).output().await.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The major version in, for example, `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major_of(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

fn program(directory: Option<&Path>, name: &str) -> PathBuf {
    directory.map_or_else(|| PathBuf::from(name), |directory| directory.join(name))
}

/// What is to be installed.
#[derive(Clone, Copy)]
enum Package {
    Server,
    /// The programs of this major version that connect to a server.
    Client {
        major: u32,
    },
}

fn install_here(package: Package) -> String {
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    install_command(&os_release, rustix::process::geteuid().is_root(), package)
}

/// The command that installs a package on the system that `os_release` (os-release(5)) describes.
fn install_command(os_release: &str, root: bool, package: Package) -> String {
    let mut names = Vec::new();
    for line in os_release.lines() {
        let value = line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE="));
        names.extend(value.unwrap_or_default().trim_matches(['"', '\'']).split_whitespace());
    }
    let command = names.iter().find_map(|name| match (*name, package) {
        ("debian" | "ubuntu", Package::Server) => Some("apt-get install postgresql".to_owned()),
        ("debian" | "ubuntu", Package::Client { major }) => {
            Some(format!("apt-get install postgresql-client-{major}"))
        }
        ("fedora" | "rhel" | "centos", Package::Server) => {
            Some("dnf install postgresql-server".to_owned())
        }
        ("fedora" | "rhel" | "centos", Package::Client { .. }) => {
            Some("dnf install postgresql".to_owned())
        }
        ("arch", _) => Some("pacman -S postgresql".to_owned()),
        ("alpine", Package::Server) => Some("apk add postgresql".to_owned()),
        ("alpine", Package::Client { major }) => Some(format!("apk add postgresql{major}-client")),
        ("suse" | "opensuse", Package::Server) => {
            Some("zypper install postgresql-server".to_owned())
        }
        ("suse" | "opensuse", Package::Client { major }) => {
            Some(format!("zypper install postgresql{major}"))
        }
        _ => None,
    });
    match (command, package) {
        (Some(command), _) if root => command,
        (Some(command), _) => format!("sudo {command}"),
        (None, Package::Server) => "the PostgreSQL server package of this system".to_owned(),
        (None, Package::Client { major }) => {
            format!("the client package of PostgreSQL {major} of this system")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_without_the_programs_gives_the_install_command() {
        let empty = tempfile::tempdir().expect("a temporary folder");
        let error = find_binaries(Some(empty.path()), None).await.expect_err("nothing is there");
        assert!(error.to_string().contains("install"), "{error}");
        assert!(error.to_string().contains(&install_here(Package::Server)), "{error}");
        let error = find_program("pg_dump", Some(empty.path()), 15).await.expect_err("nothing");
        let install = install_here(Package::Client { major: 15 });
        assert!(error.to_string().contains(&install), "{error}");
    }

    #[tokio::test]
    async fn a_client_program_that_is_older_than_the_server_is_not_used() {
        let path = find_program("pg_dump", None, 7).await.expect("one is here");
        let here = output_of(&path, "--version").await.as_deref().and_then(major_of);
        let major = here.expect("it says so");
        assert_eq!(find_program("pg_dump", None, major).await.expect("the same"), path);
        let error = find_program("pg_dump", None, 999).await.expect_err("nobody has version 999");
        assert!(
            matches!(&error, Error::Program { found, .. } if found.contains(&major)),
            "{error}"
        );
        assert!(error.to_string().contains("999"), "{error}");
    }

    #[tokio::test]
    async fn a_cluster_of_another_version_is_left_alone() {
        let error = find_binaries(None, Some(7)).await.expect_err("nobody has version 7");
        assert!(matches!(error, Error::Version { cluster_major: 7, .. }), "{error:?}");
    }

    #[test]
    fn the_install_command_fits_the_system() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(install_command(debian, true, Package::Server), "apt-get install postgresql");
        assert_eq!(
            install_command(debian, false, Package::Server),
            "sudo apt-get install postgresql"
        );
        let mint = "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n";
        assert_eq!(install_command(mint, true, Package::Server), "apt-get install postgresql");
        let rocky = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n";
        assert_eq!(install_command(rocky, true, Package::Server), "dnf install postgresql-server");
        let client = Package::Client { major: 16 };
        assert_eq!(install_command(debian, true, client), "apt-get install postgresql-client-16");
        assert_eq!(install_command(rocky, false, client), "sudo dnf install postgresql");
        assert!(install_command("", true, client).contains("PostgreSQL 16"));
        assert!(install_command("", true, Package::Server).contains("PostgreSQL server package"));
    }

    #[test]
    fn versions_are_read_and_ordered_as_numbers() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 18beta2\n"), Some(18));
        assert_eq!(major_of("busybox"), None);
        let names = ["9", "16", "10", "common"].map(str::to_owned);
        assert_eq!(newest_first(names.into_iter(), ""), ["16", "10", "9"]);
        let names = ["pgsql-9.6", "lib", "pgsql-15"].map(str::to_owned);
        assert_eq!(newest_first(names.into_iter(), "pgsql-"), ["pgsql-15"]);
    }
}
