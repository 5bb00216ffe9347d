//! The keys of a node: its key files, and the remote signer.

use std::collections::BTreeSet;
use std::time::Duration;

use alloy_primitives::Address;
use anyhow::{Context, ensure};
use hyper::Uri;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use txm::signer::keystore::Keystore;
use txm::signer::remote::RemoteSigner;
use txm::signer::{SignError, SignedBytes, Signer, Unsigned};

use super::tls;
use crate::config::txm_signers::Signers;

/// Keeps the memory of this process from core dumps, and from other processes of its user.
///
/// # Errors
/// The system refuses it.
pub(super) fn seal_memory() -> anyhow::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).context("forbid core dumps, RLIMIT_CORE")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("PR_SET_DUMPABLE")
}

/// The keys of a node.
pub(in crate::commands) struct NodeKeys {
    files: Option<Keystore>,
    remote: Option<RemoteSigner>,
}

impl NodeKeys {
    /// Opens the keys that the configuration names.
    ///
    /// # Errors
    /// A file cannot be read or decrypted, or two keys are of one address.
    pub(in crate::commands) fn open(signers: &Signers) -> anyhow::Result<NodeKeys> {
        let files = signers.keystore_dir.as_ref().map(|dir| {
            let opened = Keystore::open(dir, signers.password_file.as_deref());
            opened.with_context(|| format!("txm.signers.keystore_dir = {}", dir.display()))
        });
        let remote = signers.remote_url.as_ref().map(|url| {
            let url = url.expose();
            remote(signers, url).with_context(|| format!("txm.signers.remote_url, {}", place(url)))
        });
        let keys = NodeKeys { files: files.transpose()?, remote: remote.transpose()? };
        let addresses = keys.addresses();
        let unique: BTreeSet<Address> = addresses.iter().copied().collect();
        ensure!(unique.len() == addresses.len(), "two keys are of one address");
        ensure!(!addresses.is_empty(), "txm.signers.keystore_dir has no key file");
        Ok(keys)
    }
}

/// Host and port of a URL: the rest may hold a password.
fn place(url: &str) -> String {
    let uri = url.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or("without a host");
    match uri.as_ref().and_then(Uri::port_u16) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn remote(signers: &Signers, url: &str) -> anyhow::Result<RemoteSigner> {
    let own = signers.remote_certificate_file.as_ref().zip(signers.remote_key_file.as_ref());
    let client = tls::client(signers.remote_ca_file.as_deref(), own)?;
    let host = url.parse::<Uri>()?.host().unwrap_or_default().to_owned();
    let timeout = Duration::from_millis(signers.timeout_ms);
    Ok(RemoteSigner::new(url, &[host], &signers.remote()?, Some(client), timeout)?)
}

impl Signer for NodeKeys {
    fn addresses(&self) -> Vec<Address> {
        let files = self.files.iter().flat_map(Signer::addresses);
        let mut addresses: Vec<Address> =
            files.chain(self.remote.iter().flat_map(Signer::addresses)).collect();
        addresses.sort_unstable();
        addresses
    }

    async fn sign(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        let here = |files: &&Keystore| files.addresses().contains(&unsigned.signer);
        match (self.files.as_ref().filter(here), &self.remote) {
            (Some(files), _) => files.sign(unsigned).await,
            (None, Some(remote)) => remote.sign(unsigned).await,
            (None, None) => Err(SignError::NoKey),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_place_has_no_password() {
        for (url, want) in [
            ("https://u:hunter2@signer.example:9000/hunter2?hunter2", "signer.example:9000"),
            ("https://signer.example", "signer.example"),
            ("hunter2 hunter2", "without a host"),
        ] {
            assert_eq!(place(url), want);
        }
    }
}
