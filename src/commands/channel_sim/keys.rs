//! The simulator's keys, as files that a configuration can name. They are made at the first start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rsa::pkcs8::{DecodePrivateKey, EncodePrivateKey, LineEnding};
use rsa::rand_core::OsRng;
use rsa::{RsaPrivateKey, RsaPublicKey};

use super::crypto;

/// The bits of every key.
const BITS: usize = 2048;

/// The merchant, by the names that the configuration of a channel has.
pub(super) const MCHID: &str = "1900000001";
pub(super) const APPID: &str = "wx0000000000000001";
pub(super) const MERCHANT_SERIAL: &str = "5157F09EFDC096DE15EBE81A47057A72";

/// A key of the platform.
pub(super) struct SigningKey {
    /// The serial of its certificate, or its id.
    pub(super) serial: String,
    pub(super) private: RsaPrivateKey,
    /// The certificate, PEM; `None`: a public key alone.
    pub(super) certificate: Option<String>,
}

/// All keys.
pub(super) struct Keys {
    directory: PathBuf,
    pub(super) merchant: RsaPublicKey,
    /// 32 bytes.
    pub(super) api_v3: String,
    /// From the oldest on. The last two sign callbacks in turns, as during a change.
    pub(super) platform: Vec<SigningKey>,
    pub(super) card_key: String,
    pub(super) card_secret: String,
}

impl Keys {
    /// Reads the keys of a directory, and makes those that are not there.
    pub(super) fn open(directory: &Path) -> io::Result<Keys> {
        let text = |name: &str, make: &dyn Fn() -> String| kept(&directory.join(name), make);
        let merchant = text("merchant_key.pem", &private_pem)?;
        let merchant = read_private(&merchant)?.to_public_key();
        fs::write(directory.join("mchid"), MCHID)?;
        fs::write(directory.join("appid"), APPID)?;
        fs::write(directory.join("merchant_serial"), MERCHANT_SERIAL)?;
        let random = |prefix: &str| format!("{prefix}{:032x}", rand_u128());
        let mut keys = Keys {
            directory: directory.to_owned(),
            merchant,
            api_v3: text("api_v3_key", &|| random(""))?,
            platform: Vec::new(),
            card_key: text("card_api_key", &|| random("sk_test_"))?,
            card_secret: text("card_webhook_secret", &|| random("whsec_"))?,
        };
        // The first key is a certificate. A later start finds all of them again.
        while keys.platform.is_empty() || keys.is_next_there() {
            let is_public = keys.path(keys.platform.len() + 1, "public.id").exists();
            keys.add(is_public)?;
        }
        Ok(keys)
    }

    /// A further key, which signs from now on. `is_public`: without a certificate.
    pub(super) fn add(&mut self, is_public: bool) -> io::Result<()> {
        let number = self.platform.len() + 1;
        if is_public {
            fs::write(self.path(number, "public.id"), public_id(number))?;
        }
        let pem = kept(&self.path(number, "key.pem"), &private_pem)?;
        let private = read_private(&pem)?;
        let (serial, certificate) = if is_public {
            let public = crypto::public_pem(&private.to_public_key());
            fs::write(self.path(number, "public.pem"), public)?;
            (public_id(number), None)
        } else {
            let serial = format!("{:040X}", 0x4a << 8 | number);
            let serial = serial.trim_start_matches('0').to_owned();
            let certificate = crypto::certificate_pem(&private, &serial);
            fs::write(self.path(number, "certificate.pem"), &certificate)?;
            (serial, Some(certificate))
        };
        self.platform.push(SigningKey { serial, private, certificate });
        Ok(())
    }

    /// The key that signs a callback or an answer. `turn`: its number.
    pub(super) fn signing(&self, turn: u64, wanted: Option<&str>) -> &SigningKey {
        let named = self.platform.iter().find(|key| wanted == Some(&key.serial));
        let newest = self.platform.len() - 1;
        let older = usize::from(turn % 2 == 1 && newest > 0);
        named.unwrap_or(&self.platform[newest - older])
    }

    fn path(&self, number: usize, what: &str) -> PathBuf {
        self.directory.join(format!("platform_{number}_{what}"))
    }

    fn is_next_there(&self) -> bool {
        self.path(self.platform.len() + 1, "key.pem").exists()
    }
}

fn public_id(number: usize) -> String {
    format!("PUB_KEY_ID_01{number:030}")
}

/// The text of a file, which is made first if it is not there.
fn kept(path: &Path, make: &dyn Fn() -> String) -> io::Result<String> {
    if !path.exists() {
        fs::write(path, make())?;
    }
    fs::read_to_string(path)
}

/// PEM of a new private key.
pub(super) fn private_pem() -> String {
    let key = RsaPrivateKey::new(&mut OsRng, BITS).expect("random numbers of the kernel");
    key.to_pkcs8_pem(LineEnding::LF).expect("a key").to_string()
}

pub(super) fn read_private(pem: &str) -> io::Result<RsaPrivateKey> {
    RsaPrivateKey::from_pkcs8_pem(pem).map_err(io::Error::other)
}

fn rand_u128() -> u128 {
    use crate::entropy::{Entropy, SystemEntropy};
    SystemEntropy::default().u128()
}
