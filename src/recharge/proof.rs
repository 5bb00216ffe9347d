//! The proof of an order: text that travels with it through the channel. It tells our payments from
//! those of another deployment, and remakes an order that was lost.
//!
//! `1.{deployment}.{user}.{asset}.{amount}.{bonus}.{promotion}.{to}.{mac}`: numbers in hexadecimal,
//! at most [`PROOF_BYTES_MAX`] bytes. The mac is 128 bits of HMAC-SHA256 over the text before it,
//! the channel and the merchant number, in the form of a ULID.

use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::hmac;
use ulid::Ulid;

use super::order::{Recharge, RechargeTarget};
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;

/// The most bytes of a proof: the shortest limit of the channels.
pub const PROOF_BYTES_MAX: usize = 128;
/// The most bytes of the name of a deployment.
pub const DEPLOYMENT_BYTES_MAX: usize = 16;

/// The word of a proof about a payment. Its order may not be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proven {
    /// There is none, or it is no proof of this version.
    Nothing,
    /// Ours.
    Ours,
    /// It names this deployment, and its mac is wrong.
    Broken,
    /// It names another deployment.
    Elsewhere,
}

/// The order that a proof of ours describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenOrder {
    /// The owner.
    pub user: UserId,
    /// The asset.
    pub asset: AssetId,
    /// How much, smallest units.
    pub amount: Amount,
    /// Out of a promotion, smallest units.
    pub bonus: u64,
    /// The promotion, if there is one.
    pub promotion: Option<String>,
    /// Where the money is meant for.
    pub target: RechargeTarget,
}

/// The keys of proofs: the present one signs, and both verify. A clone has the same keys, also
/// behind a change.
#[derive(Clone)]
pub struct ProofKeys {
    deployment: String,
    keys: Arc<ArcSwap<Vec<hmac::Key>>>,
}

impl ProofKeys {
    /// The keys of a deployment. `deployment`: 1..=[`DEPLOYMENT_BYTES_MAX`] bytes of `[a-z0-9-]`.
    /// `previous`: the secret before this one, for proofs that are still on their way.
    pub fn new(deployment: &str, secret: &[u8], previous: Option<&[u8]>) -> ProofKeys {
        let keys = Arc::new(ArcSwap::from_pointee(keys(secret, previous)));
        ProofKeys { deployment: deployment.to_owned(), keys }
    }

    /// Puts other secrets in force, for every clone.
    pub fn replace(&self, secret: &[u8], previous: Option<&[u8]>) {
        self.keys.store(Arc::new(keys(secret, previous)));
    }

    /// The proof of an order.
    pub fn sign(&self, order: &Recharge) -> String {
        let (user, asset, amount) = (order.user.number(), order.asset.0, order.amount.units());
        let promotion = order.promotion.as_deref().unwrap_or("");
        let body = format!(
            "1.{}.{user:x}.{asset:x}.{amount:x}.{:x}.{promotion}.{}",
            self.deployment,
            order.bonus,
            order.target.number(),
        );
        let mac = mac(&self.keys.load()[0], &body, &order.channel, &order.id.to_string());
        format!("{body}.{}", Ulid(mac))
    }

    /// Reads a proof that came back by `channel` with `merchant_no`.
    pub fn verify(
        &self,
        proof: Option<&str>,
        channel: &str,
        merchant_no: &str,
    ) -> (Proven, Option<ProvenOrder>) {
        let Some(text) = proof.filter(|text| text.len() <= PROOF_BYTES_MAX) else {
            return (Proven::Nothing, None);
        };
        let fields: Vec<&str> = text.split('.').collect();
        let ["1", deployment, .., sent] = fields[..] else { return (Proven::Nothing, None) };
        if deployment != self.deployment {
            return (Proven::Elsewhere, None);
        }
        let body = &text[..text.len() - sent.len() - 1];
        let sent = Ulid::from_string(sent).map(|ulid| ulid.0);
        let known = self.keys.load();
        let mut macs = known.iter().map(|key| mac(key, body, channel, merchant_no));
        // The parts that differ are added up before anything is compared: the time tells nothing.
        let holds = sent
            .is_ok_and(|sent| macs.by_ref().fold(false, |holds, mac| holds | ((mac ^ sent) == 0)));
        match order_of(&fields).filter(|_| holds) {
            Some(order) => (Proven::Ours, Some(order)),
            None => (Proven::Broken, None),
        }
    }
}

/// The keys of two secrets, the one that signs first.
fn keys(secret: &[u8], previous: Option<&[u8]>) -> Vec<hmac::Key> {
    let key = |secret: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, secret);
    [Some(secret), previous].into_iter().flatten().map(key).collect()
}

/// The order in the fields of a proof.
fn order_of(fields: &[&str]) -> Option<ProvenOrder> {
    let &["1", _, user, asset, amount, bonus, promotion, target, _] = fields else { return None };
    let number = |text| u64::from_str_radix(text, 16).ok();
    let target = target.parse().ok().and_then(RechargeTarget::from_number)?;
    Some(ProvenOrder {
        user: UserId::new(number(user)?)?,
        asset: AssetId(u32::from_str_radix(asset, 16).ok()?),
        amount: Amount::new(number(amount)?)?,
        bonus: number(bonus)?,
        promotion: (!promotion.is_empty()).then(|| promotion.to_owned()),
        target,
    })
}

/// 128 bits of the mac.
fn mac(key: &hmac::Key, body: &str, channel: &str, merchant_no: &str) -> u128 {
    // A line feed is in no part.
    let text = format!("{body}\n{channel}\n{merchant_no}");
    let tag = hmac::sign(key, text.as_bytes());
    u128::from_be_bytes(tag.as_ref()[..16].try_into().expect("a tag of 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::super::decide::tests::order;
    use super::*;

    fn keys(deployment: &str, secret: &str, previous: Option<&str>) -> ProofKeys {
        ProofKeys::new(deployment, secret.as_bytes(), previous.map(str::as_bytes))
    }

    /// Goal: a changed secret loses no payment, and a proof of another order, channel or
    /// deployment proves nothing.
    #[test]
    fn a_proof_is_that_of_one_order_under_either_secret() {
        let order = order();
        let (old, new) = (keys("live", "old", None), keys("live", "new", Some("old")));
        let (proof, no) = (old.sign(&order), order.id.to_string());
        for keys in [&old, &new] {
            let (proven, found) = keys.verify(Some(&proof), &order.channel, &no);
            assert_eq!(proven, Proven::Ours);
            let found = found.expect("its order");
            assert_eq!((found.user, found.asset), (order.user, order.asset));
            assert_eq!((found.amount, found.bonus), (order.amount, order.bonus));
            assert_eq!((found.promotion, found.target), (order.promotion.clone(), order.target));
        }
        let says = |keys: &ProofKeys, proof: &str| keys.verify(Some(proof), &order.channel, &no).0;
        assert_eq!(says(&keys("live", "third", None), &proof), Proven::Broken);
        assert_eq!(says(&keys("test", "old", None), &proof), Proven::Elsewhere);
        assert_eq!(says(&old, &proof.replace(".1.", ".2.")), Proven::Broken);
        for nothing in ["", "hello", "2.live.1", &"1.".repeat(99)] {
            assert_eq!(says(&old, nothing), Proven::Nothing, "{nothing}");
        }
        assert_eq!(old.verify(Some(&proof), "card", &no).0, Proven::Broken);
        assert_eq!(old.verify(Some(&proof), &order.channel, "wrc_1").0, Proven::Broken);
        assert_eq!(old.verify(None, &order.channel, &no).0, Proven::Nothing);
    }

    /// Goal: a change of the secrets reaches every clone.
    #[test]
    fn a_change_of_secrets_holds_for_every_clone() {
        let (kept, order) = (keys("live", "old", None), order());
        let clone = kept.clone();
        let proven = |proof: &str| clone.verify(Some(proof), &order.channel, &order.id.to_string());
        let old = kept.sign(&order);
        kept.replace(b"new", Some(b"old"));
        assert_eq!(proven(&old).0, Proven::Ours);
        assert_eq!(proven(&kept.sign(&order)).0, Proven::Ours);
        assert_ne!(clone.sign(&order), old);
        kept.replace(b"new", None);
        assert_eq!(proven(&old).0, Proven::Broken);
    }

    #[test]
    fn the_longest_proof_fits_every_channel() {
        let mut order = order();
        order.user = UserId::new(i64::MAX as u64).expect("an id");
        order.asset = AssetId(u32::MAX);
        order.amount = Amount::new(u64::MAX).expect("not zero");
        (order.bonus, order.promotion) = (u64::MAX, Some("p".repeat(16)));
        let proof = keys(&"d".repeat(DEPLOYMENT_BYTES_MAX), "s", None).sign(&order);
        assert!(proof.len() <= PROOF_BYTES_MAX, "{} bytes", proof.len());
    }
}
