//! The files that keys name: secrets, public keys, certificates. Reads are bounded in length.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;
use super::secret::Secret;

/// The longest file of a secret, bytes. A longer file was named by mistake.
const SECRET_FILE_BYTES_MAX: u64 = 65_536;

/// The longest file of public keys or certificates, bytes: an issuer's set has some thousand.
const KEY_FILE_BYTES_MAX: u64 = 1_048_576;

/// Reads a file of public keys or certificates.
///
/// # Errors
/// The system's error; or the path is not a file, or the file is too long.
pub fn read_key_file(path: &Path) -> io::Result<Vec<u8>> {
    check(path, KEY_FILE_BYTES_MAX)?;
    fs::read(path)
}

/// Puts the content of the file, if one is named, into `secret`. `key`: the file's key as
/// `section.key`.
pub(super) fn read_secret(
    key: impl Into<Cow<'static, str>>,
    secret: &mut Option<Secret>,
    file: &Option<PathBuf>,
) -> Result<(), Error> {
    let Some(path) = file else { return Ok(()) };
    let text = check(path, SECRET_FILE_BYTES_MAX).and_then(|()| fs::read_to_string(path));
    let mut text = text.map_err(|source| {
        let (key, path) = (key.into(), path.clone());
        Error::SecretFile { key, path, source }
    })?;
    // Editors and `echo` add a line break at the end. It is not part of the secret.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    *secret = Some(Secret::new(text));
    Ok(())
}

/// Refuses a device and a pipe, because reading one may never end.
fn check(path: &Path, bytes_max: u64) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > bytes_max {
        let problem = format!("not a file of at most {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::secret::Secret;
    use crate::config::tests::{OWN_SECRET, file, load, refusal};

    #[test]
    fn a_secret_comes_from_a_file_without_its_line_break() {
        let secret = file(&format!("{OWN_SECRET}\n"));
        let path = secret.path().display();
        let config = load(&format!("[auth]\nsecret_file = \"{path}\""), &[]).expect("loaded");
        assert_eq!(config.auth.secret, Some(Secret::new(OWN_SECRET)));

        let said = refusal("[auth]\nsecret_file = \"/nowhere/at/all\"", &[]);
        assert_eq!(said, "auth.secret_file = /nowhere/at/all: cannot be read");
        let said = refusal("[auth]\nsecret_file = \"/dev/zero\"", &[]);
        assert_eq!(said, "auth.secret_file = /dev/zero: cannot be read");
    }
}
