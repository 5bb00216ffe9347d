//! Keys of this machine: files of the Ethereum keystore, version 3, in one directory.
//!
//! They are decrypted once, at the start. A key is in no error, log or answer, and its memory is
//! zeroed when it is dropped. The library that decrypts leaves a derived key in freed memory: the
//! process itself must not write core dumps.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::future::{self, Future};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use alloy_primitives::{Address, Signature};
use eth_keystore::{EthKeystore, KdfparamsType};
use k256::ecdsa::SigningKey;
use zeroize::Zeroizing;

use super::{SignError, SignedBytes, Signer, Unsigned, codec};

/// The largest key or password file, bytes. A key file has about 500.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// The most memory times rounds that a key file may ask of scrypt: four times the usual. A damaged
/// number would take all memory at the start.
const SCRYPT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The most rounds of pbkdf2 that a key file may ask for, 38 times the usual: about ten seconds.
const PBKDF2_ROUNDS_MAX: u32 = 10_000_000;
/// The file name of a key's own password ends so.
const PASSWORD_SUFFIX: &str = ".password";

/// Why the keys are not opened. No variant has a part of a key or of a password.
#[derive(Debug, thiserror::Error)]
pub enum KeystoreError {
    /// A file or the directory is not read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others than its owner may read it.
    #[error("{} has mode {mode:o}, and others may read it; next: chmod 600", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The permissions.
        mode: u32,
    },
    /// It is no key file of version 3, or asks for something that is not done.
    #[error("{} is no keystore of version 3: {reason}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The part.
        reason: &'static str,
    },
    /// A key file without a password.
    #[error("{} has no password: set a file for all keys, or add {}{PASSWORD_SUFFIX}", path.display(), path.display())]
    NoPassword {
        /// The key file.
        path: PathBuf,
    },
    /// The password is wrong.
    #[error("the password of {} is wrong", path.display())]
    Password {
        /// The file.
        path: PathBuf,
    },
    /// The address that the file names is not that of its key.
    #[error("{} names another address than that of its key, {found}", path.display())]
    Address {
        /// The file.
        path: PathBuf,
        /// The address of the key.
        found: Address,
    },
    /// Two files have the key of one address.
    #[error("{} and {} have the key of the same address {address}", first.display(), second.display())]
    Doubled {
        /// The address.
        address: Address,
        /// One file.
        first: PathBuf,
        /// The other one.
        second: PathBuf,
    },
}

/// The decrypted keys, by address.
pub struct Keystore {
    keys: BTreeMap<Address, SigningKey>,
}

impl fmt::Debug for Keystore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

impl Keystore {
    /// Decrypts all key files of a directory. It blocks: about a second a file.
    ///
    /// Each file but hidden ones and `*.password` is a key file. `password_file`: of all keys; a
    /// file `NAME.password` beside the key file `NAME` comes first. The last line end of a password
    /// does not count. All files must have mode 0600 or less.
    ///
    /// # Errors
    /// [`KeystoreError`]: no key at all is opened then.
    pub fn open(dir: &Path, password_file: Option<&Path>) -> Result<Keystore, KeystoreError> {
        let mut files = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for path in key_files(dir)? {
            let key = decrypted(&path, password_file)?;
            let address = Address::from_private_key(&key);
            if let Some(first) = files.insert(address, path.clone()) {
                return Err(KeystoreError::Doubled { address, first, second: path });
            }
            keys.insert(address, key);
        }
        Ok(Keystore { keys })
    }

    /// Keys that are given, for tests and chains of a developer.
    ///
    /// # Errors
    /// [`SignError::NoKey`]: 32 bytes that are no key.
    pub fn of_keys(keys: &[[u8; 32]]) -> Result<Keystore, SignError> {
        let read = |key: &[u8; 32]| SigningKey::from_slice(key).map_err(|_| SignError::NoKey);
        let keys = keys.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let keys = keys.into_iter().map(|key| (Address::from_private_key(&key), key)).collect();
        Ok(Keystore { keys })
    }

    fn signed(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        let key = self.keys.get(&unsigned.signer).ok_or(SignError::NoKey)?;
        let hash = codec::signature_hash(unsigned);
        let signature = key
            .sign_prehash_recoverable(hash.as_slice())
            .map_err(|_| SignError::Away("the key does not sign this hash".to_owned()))?;
        codec::check(&codec::encode(unsigned, Signature::from(signature)), unsigned)
    }
}

impl Signer for Keystore {
    fn addresses(&self) -> Vec<Address> {
        self.keys.keys().copied().collect()
    }

    /// Signs at once: about 100 µs of this thread.
    fn sign(
        &self,
        unsigned: &Unsigned,
    ) -> impl Future<Output = Result<SignedBytes, SignError>> + Send {
        future::ready(self.signed(unsigned))
    }
}

/// The key files of a directory, by name. Hidden names are the work of editors and mounts.
fn key_files(dir: &Path) -> Result<Vec<PathBuf>, KeystoreError> {
    let failed = |source| KeystoreError::Read { path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') && !name.ends_with(PASSWORD_SUFFIX) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads a secret file that only its owner may read.
fn secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeystoreError> {
    let failed = |source| KeystoreError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    // Of the open file: a name can be exchanged between two looks.
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o177 != 0 {
        return Err(KeystoreError::Open { path: path.to_owned(), mode });
    }
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        let reason = "no plain file of at most 64 KiB";
        return Err(KeystoreError::Form { path: path.to_owned(), reason });
    }
    // Room for all of it: a buffer that grows leaves copies behind.
    let room = usize::try_from(FILE_BYTES_MAX).expect("64 KiB fit") + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The password of a key file: its own, or that of all.
fn password(key: &Path, shared: Option<&Path>) -> Result<Zeroizing<Vec<u8>>, KeystoreError> {
    let mut name = key.as_os_str().to_owned();
    name.push(PASSWORD_SUFFIX);
    let own = PathBuf::from(name);
    let mut password = match shared {
        _ if own.exists() => secret(&own)?,
        Some(shared) => secret(shared)?,
        None => return Err(KeystoreError::NoPassword { path: key.to_owned() }),
    };
    for end in [b'\n', b'\r'] {
        if password.last() == Some(&end) {
            password.pop();
        }
    }
    Ok(password)
}

fn decrypted(path: &Path, shared: Option<&Path>) -> Result<SigningKey, KeystoreError> {
    let form = |reason| KeystoreError::Form { path: path.to_owned(), reason };
    let bytes = secret(path)?;
    let file: EthKeystore = serde_json::from_slice(&bytes).map_err(|_| form("its JSON"))?;
    if let Some(part) = odd_part(&file) {
        return Err(form(part));
    }
    let password = password(path, shared)?;
    let wrong = |error| match error {
        eth_keystore::KeystoreError::MacMismatch => {
            KeystoreError::Password { path: path.to_owned() }
        }
        _ => form("it is not decrypted"),
    };
    let key = Zeroizing::new(eth_keystore::decrypt_key(path, &*password).map_err(wrong)?);
    let key = SigningKey::from_slice(&key).map_err(|_| form("32 bytes that are no key"))?;
    let found = Address::from_private_key(&key);
    match named(&bytes) {
        Some(named) if named != found => {
            Err(KeystoreError::Address { path: path.to_owned(), found })
        }
        _ => Ok(key),
    }
}

/// The address that a key file names, if it does.
fn named(bytes: &[u8]) -> Option<Address> {
    let file: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    file.get("address")?.as_str()?.parse().ok()
}

/// The part of a key file that is not as it must be. The library believes its numbers.
fn odd_part(file: &EthKeystore) -> Option<&'static str> {
    let crypto = &file.crypto;
    if file.version != 3 {
        return Some("its version");
    }
    if crypto.cipher != "aes-128-ctr" || crypto.cipherparams.iv.len() != 16 {
        return Some("its cipher");
    }
    if crypto.ciphertext.len() != 32 || crypto.mac.len() != 32 {
        return Some("its lengths");
    }
    match &crypto.kdfparams {
        KdfparamsType::Pbkdf2 { c, dklen, prf, .. } => {
            let fits = *dklen == 32 && prf == "hmac-sha256" && (1..=PBKDF2_ROUNDS_MAX).contains(c);
            (!fits).then_some("its numbers of pbkdf2")
        }
        KdfparamsType::Scrypt { dklen, n, p, r, .. } => {
            let bytes = [128, u64::from(*n), u64::from(*r), u64::from(*p)];
            let bytes = bytes.into_iter().try_fold(1, u64::checked_mul);
            let fits = *dklen == 32
                && n.is_power_of_two()
                && *n > 1
                && bytes.is_some_and(|bytes| (1..=SCRYPT_BYTES_MAX).contains(&bytes));
            (!fits).then_some("its numbers of scrypt")
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Bytes, U256, address};
    use chain::fee::GasPrice;
    use tempfile::TempDir;

    use super::*;

    /// Of the key of both files below. The first is a vector of the keystore's definition.
    const ADDRESS: Address = address!("008aeeda4d805471df9b2a5b0f38a0c3bcba786b");
    const PBKDF2: &str = r#"{"crypto": {"cipher": "aes-128-ctr",
        "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
        "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
        "kdf": "pbkdf2", "kdfparams": {"c": 262144, "dklen": 32, "prf": "hmac-sha256",
        "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd"},
        "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2"},
        "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6", "version": 3}"#;
    const SCRYPT: &str = r#"{"crypto": {"cipher": "aes-128-ctr",
        "cipherparams": {"iv": "cff0518bfc16823b6bc17993ae31da28"},
        "ciphertext": "2f0ca3a53ae3f4f30aba5d21d67b86c4c743b33274b352efc970ea5a89fb2ed0",
        "kdf": "scrypt", "kdfparams": {"dklen": 32, "n": 8192, "p": 1, "r": 8,
        "salt": "f097183a445d74c24e2a64bc4fee9b19fbe107e153dc1b9f33fa93297b4838d1"},
        "mac": "8a0456104e3c7771c148b2ab5d8bcffcac280c1742190e5f1f8c5b08e33ac241"},
        "id": "372de3dc-6b6f-4d68-9944-3a838f24bb93", "version": 3}"#;

    /// A directory of secret files, each a name and its text.
    fn directory(files: &[(&str, &str)]) -> TempDir {
        let dir = TempDir::new().expect("a directory");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::write(&path, text).expect("written");
            set_mode(&path, 0o600);
        }
        dir
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    fn refusal(files: &[(&str, &str)]) -> KeystoreError {
        Keystore::open(directory(files).path(), None).expect_err("refused")
    }

    fn unsigned(signer: Address) -> Unsigned {
        Unsigned {
            chain_id: 31_337,
            signer,
            nonce: 0,
            to: ADDRESS,
            value: U256::from(1),
            data: Bytes::new(),
            gas: 21_000,
            price: GasPrice { max_fee: 2, max_tip: 1 },
            is_legacy: false,
        }
    }

    #[tokio::test]
    async fn a_key_file_is_opened_and_signs() {
        let named =
            SCRYPT.replace("{\"crypto\"", &format!("{{\"address\": \"{ADDRESS:x}\", \"crypto\""));
        for key in [PBKDF2, &named] {
            let files = [("a", key), ("a.password", "testpassword\n"), (".hidden", "no key")];
            let dir = directory(&files);
            let keystore = Keystore::open(dir.path(), None).expect("opened");
            assert_eq!(keystore.addresses(), [ADDRESS]);
            let signed = keystore.sign(&unsigned(ADDRESS)).await.expect("signed");
            assert_eq!(codec::check(&signed.raw, &unsigned(ADDRESS)), Ok(signed));
            let other = unsigned(Address::repeat_byte(7));
            assert_eq!(keystore.sign(&other).await, Err(SignError::NoKey));
            assert_eq!(format!("{keystore:?}").to_lowercase(), format!("{{{ADDRESS:#x}}}"));
        }
        let (keys, all) = (directory(&[("a", PBKDF2)]), directory(&[("all", "testpassword")]));
        let keystore = Keystore::open(keys.path(), Some(&all.path().join("all")));
        assert_eq!(keystore.expect("opened").addresses(), [ADDRESS]);
    }

    #[test]
    fn two_files_of_one_address_are_refused() {
        let error = refusal(&[
            ("a", PBKDF2),
            ("a.password", "testpassword"),
            ("b", SCRYPT),
            ("b.password", "testpassword"),
        ]);
        assert!(matches!(&error, KeystoreError::Doubled { address: ADDRESS, .. }), "{error}");
    }

    #[test]
    fn files_that_others_may_read_are_refused() {
        for (open, mode) in [("a", 0o640), ("a", 0o604), ("a.password", 0o660), ("a", 0o700)] {
            let dir = directory(&[("a", PBKDF2), ("a.password", "testpassword")]);
            set_mode(&dir.path().join(open), mode);
            let error = Keystore::open(dir.path(), None).expect_err("refused");
            assert!(matches!(error, KeystoreError::Open { mode: found, .. } if found == mode));
        }
    }

    #[test]
    fn a_file_that_is_no_key_is_refused_and_never_a_panic() {
        let none = refusal(&[("a", PBKDF2)]);
        assert!(matches!(none, KeystoreError::NoPassword { .. }));
        let wrong = refusal(&[("a", PBKDF2), ("a.password", "testpasswore")]);
        assert!(matches!(wrong, KeystoreError::Password { .. }));
        assert!(!wrong.to_string().contains("testpasswore"));
        for (part, other) in [
            ("\"version\": 3", "\"version\": 2"),
            ("aes-128-ctr", "aes-128-cbc"),
            ("6087dab2f9fdbbfaddc31a909735c1e6", "6087"),
            ("5318b4d5bcd28de6", ""),
            ("\"dklen\": 32", "\"dklen\": 8"),
            ("262144", "4000000000"),
            ("hmac-sha256", "hmac-sha1"),
            ("{", "["),
        ] {
            let error = refusal(&[("a", &PBKDF2.replace(part, other)), ("a.password", "x")]);
            assert!(matches!(&error, KeystoreError::Form { .. }), "{part}: {error}");
        }
        for (part, other) in [("8192", "8191"), ("8192", "0"), ("\"r\": 8", "\"r\": 4000")] {
            let error = refusal(&[("a", &SCRYPT.replace(part, other)), ("a.password", "x")]);
            assert!(matches!(&error, KeystoreError::Form { .. }), "{other}: {error}");
        }
        let moved = PBKDF2.replace(
            "{\"crypto\"",
            "{\"address\": \"0000000000000000000000000000000000000001\", \"crypto\"",
        );
        let error = refusal(&[("a", &moved), ("a.password", "testpassword")]);
        assert!(matches!(error, KeystoreError::Address { found: ADDRESS, .. }));
    }
}
