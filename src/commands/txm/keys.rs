//! The keys of a node: its key files, and the remote signer.

use std::collections::BTreeSet;

use alloy_primitives::Address;
use anyhow::{Context, ensure};
use txm::signer::keystore::Keystore;
use txm::signer::{SignError, SignedBytes, Signer, Unsigned};

use crate::config::txm::Txm;

/// The keys of a node.
pub(super) struct NodeKeys {
    files: Option<Keystore>,
}

impl NodeKeys {
    /// Opens the keys that the configuration names.
    ///
    /// # Errors
    /// A file cannot be read or decrypted, or two keys are of one address.
    pub(super) fn open(config: &Txm) -> anyhow::Result<NodeKeys> {
        let signers = &config.signers;
        let files = signers.keystore_dir.as_ref().map(|dir| {
            let opened = Keystore::open(dir, signers.password_file.as_deref());
            opened.with_context(|| format!("txm.signers.keystore_dir = {}", dir.display()))
        });
        let keys = NodeKeys { files: files.transpose()? };
        let addresses = keys.addresses();
        let unique: BTreeSet<Address> = addresses.iter().copied().collect();
        ensure!(unique.len() == addresses.len(), "two keys are of one address");
        Ok(keys)
    }
}

impl Signer for NodeKeys {
    fn addresses(&self) -> Vec<Address> {
        let mut addresses: Vec<Address> =
            self.files.iter().flat_map(|files| files.addresses()).collect();
        addresses.sort_unstable();
        addresses
    }

    async fn sign(&self, unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
        match &self.files {
            Some(files) => files.sign(unsigned).await,
            None => Err(SignError::NoKey),
        }
    }
}
