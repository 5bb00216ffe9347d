//! Key files that a node decrypts at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::{Block, BlockCipherEncrypt, KeyInit};
use alloy_primitives::{B256, hex, keccak256};
use hmac::{Hmac, Mac};
use serde_json::json;
use sha2::Sha256;

/// The salt of every file: these keys are public.
const SALT: [u8; 32] = [7; 32];
/// The first block of the cipher's counter.
const COUNTER: u128 = 1 << 64;

/// Writes a key file, Ethereum keystore version 3, with mode 0600. Its derivation has one round:
/// the usual ones take about a second of a processor at each start of a node.
pub(crate) fn write_key_file(path: &Path, key: B256, password: &str) {
    let derived = derived(password);
    let cipher = Aes128::new_from_slice(&derived[..16]).expect("16 bytes");
    let mut encrypted = key.0;
    for (counter, part) in (COUNTER..).zip(encrypted.chunks_exact_mut(16)) {
        let mut block = Block::<Aes128>::from(counter.to_be_bytes());
        cipher.encrypt_block(&mut block);
        for (byte, mask) in part.iter_mut().zip(block) {
            *byte ^= mask;
        }
    }
    let mac = keccak256([&derived[16..], &encrypted[..]].concat());
    let file = json!({
        "version": 3, "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
        "crypto": {
            "cipher": "aes-128-ctr", "cipherparams": {"iv": hex::encode(COUNTER.to_be_bytes())},
            "ciphertext": hex::encode(encrypted), "mac": hex::encode(mac),
            "kdf": "pbkdf2",
            "kdfparams": {"c": 1, "dklen": 32, "prf": "hmac-sha256", "salt": hex::encode(SALT)},
        },
    });
    write_private(path, &file.to_string());
}

/// Writes a file that only its owner may read.
pub(crate) fn write_private(path: &Path, content: &str) {
    fs::write(path, content).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("our own file");
}

/// PBKDF2 with HMAC-SHA-256, one round, one block.
fn derived(password: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(password.as_bytes()).expect("any length");
    mac.update(&SALT);
    mac.update(&1_u32.to_be_bytes());
    mac.finalize().into_bytes().into()
}
