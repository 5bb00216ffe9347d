//! Money that comes in through payment channels.

use std::path::PathBuf;

use serde::Deserialize;

use super::bound::{Bound, DAY_MS, FIVE_MINUTES_MS, HOUR_MS, MINUTE_MS, bound};
use super::file::read_secret;
use super::hours::Hours;
use super::secret::Secret;
use super::{Error, range};

/// The fewest bytes of a secret: the length of the hash that it keys.
const SECRET_BYTES_MIN: usize = 32;
/// The most bytes of the name of a deployment: a proof must fit every channel.
const DEPLOYMENT_BYTES_MAX: usize = 16;
/// The longest life of an order, ms: the shortest limit of the channels, 23 hours.
const EXPIRES_MS_MAX: u64 = 23 * 60 * MINUTE_MS;

/// The section `[recharge]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RechargeSection {
    /// Whether there are recharges.
    pub enabled: bool,
    /// The name of this deployment in proofs.
    pub deployment: Option<String>,
    /// The secret that signs proofs. After loading this is also the content of its file.
    pub proof_secret: Option<Secret>,
    /// A file that holds the secret.
    pub proof_secret_file: Option<PathBuf>,
    /// The secret before this one. After loading this is also the content of its file.
    pub previous_proof_secret: Option<Secret>,
    /// A file that holds the previous secret, or an empty file.
    pub previous_proof_secret_file: Option<PathBuf>,
    /// The life of an unpaid order, ms.
    pub expires_after_ms: u64,
    /// How long a new order's answer waits for the channel, ms.
    pub create_wait_ms: u64,
    /// The first query of an order comes so long behind PAYING, ms.
    pub query_after_ms: u64,
    /// The longest wait between two queries of an order, ms.
    pub query_cap_ms: u64,
    /// Timeout of one call of a channel, ms.
    pub call_timeout_ms: u64,
    /// The most calls of channels at the same time.
    pub parallel: usize,
    /// The most calls of one channel in a second.
    pub calls_per_second_max: u32,
    /// Open orders of one user.
    pub user_open_max: usize,
    /// New orders of one user in a minute.
    pub user_creates_per_minute_max: u32,
    /// Open orders of all users.
    pub open_max: u64,
    /// How long a refused transfer to SPOT is tried again, hours.
    pub follow_hours: u64,
    /// How long callbacks are kept for operators, hours.
    pub notices_keep_hours: Hours,
    /// The rule for another amount than that of the order.
    pub differing: DifferingRule,
    /// The rule for a second payment of an order that is PAID.
    pub duplicate: DuplicateRule,
    /// The rule for a payment of an order that is CLOSED.
    pub late: LateRule,
    /// Whether the account of a user that owes money which a channel has taken is frozen.
    pub freeze_on_short: bool,
}

/// `recharge.differing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DifferingRule {
    /// Held for an operator.
    Hold,
    /// Credited as paid.
    Credit,
}

/// `recharge.duplicate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DuplicateRule {
    /// Sent back.
    Return,
    /// Held for an operator.
    Hold,
}

/// `recharge.late`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LateRule {
    /// Credited as paid.
    Credit,
    /// Sent back.
    Return,
    /// Held for an operator.
    Hold,
}

impl Default for RechargeSection {
    fn default() -> Self {
        Self {
            enabled: false,
            deployment: None,
            proof_secret: None,
            proof_secret_file: None,
            previous_proof_secret: None,
            previous_proof_secret_file: None,
            expires_after_ms: 25 * MINUTE_MS,
            create_wait_ms: 3_000,
            query_after_ms: 15_000,
            query_cap_ms: FIVE_MINUTES_MS,
            call_timeout_ms: 5_000,
            parallel: 32,
            calls_per_second_max: 200,
            user_open_max: 5,
            user_creates_per_minute_max: 10,
            open_max: 100_000,
            follow_hours: 24,
            notices_keep_hours: Hours::from(720.0),
            differing: DifferingRule::Hold,
            duplicate: DuplicateRule::Return,
            late: LateRule::Credit,
            freeze_on_short: true,
        }
    }
}

impl RechargeSection {
    /// Replaces the names of files by their contents. An empty previous secret becomes `None`.
    pub(super) fn read_secrets(&mut self) -> Result<(), Error> {
        const PREVIOUS: &str = "recharge.previous_proof_secret_file";
        read_secret("recharge.proof_secret_file", &mut self.proof_secret, &self.proof_secret_file)?;
        let file = &self.previous_proof_secret_file;
        read_secret(PREVIOUS, &mut self.previous_proof_secret, file)?;
        self.previous_proof_secret.take_if(|secret| secret.expose().is_empty());
        Ok(())
    }

    /// This section with the files of its secrets read again (blocks).
    ///
    /// # Errors
    /// [`Error`]: a file cannot be read, or it holds no secret.
    pub fn read_again(&self) -> Result<RechargeSection, Error> {
        let mut section = self.clone();
        section.read_secrets()?;
        section.validate()?;
        Ok(section)
    }

    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let sane = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name =
            |name: &str| (1..=DEPLOYMENT_BYTES_MAX).contains(&name.len()) && name.bytes().all(sane);
        match &self.deployment {
            Some(name) if !is_name(name) => {
                let allowed = format!("1 to {DEPLOYMENT_BYTES_MAX} of a-z 0-9 -");
                return Err(range("recharge.deployment", format!("{name:?}"), allowed));
            }
            None if self.enabled => {
                let advice = "name this deployment, for example \"live\"";
                return Err(Error::Missing { key: "recharge.deployment".into(), advice });
            }
            _ => {}
        }
        for (key, secret) in [
            ("recharge.proof_secret", &self.proof_secret),
            ("recharge.previous_proof_secret", &self.previous_proof_secret),
        ] {
            if let Some(secret) = secret
                && secret.expose().len() < SECRET_BYTES_MIN
            {
                return Err(range(key, secret, format!("at least {SECRET_BYTES_MIN} bytes")));
            }
        }
        self.notices_keep_hours.check("recharge.notices_keep_hours")?;
        if self.query_cap_ms < self.query_after_ms {
            let allowed = format!("recharge.query_after_ms or more: {}", self.query_after_ms);
            return Err(range("recharge.query_cap_ms", self.query_cap_ms, allowed));
        }
        if self.enabled && self.proof_secret.is_none() {
            return Err(Error::Missing {
                key: "recharge.proof_secret".into(),
                advice: "give recharge.proof_secret_file, recharge.proof_secret or \
                         UBSCORE__RECHARGE__PROOF_SECRET",
            });
        }
        Ok(())
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("recharge.expires_after_ms", |c| Some(c.recharge.expires_after_ms), MINUTE_MS, EXPIRES_MS_MAX, "ms"),
    bound("recharge.create_wait_ms", |c| Some(c.recharge.create_wait_ms), 0, MINUTE_MS, "ms"),
    bound("recharge.query_after_ms", |c| Some(c.recharge.query_after_ms), 100, HOUR_MS, "ms"),
    bound("recharge.query_cap_ms", |c| Some(c.recharge.query_cap_ms), 100, DAY_MS, "ms"),
    bound("recharge.call_timeout_ms", |c| Some(c.recharge.call_timeout_ms), 100, MINUTE_MS, "ms"),
    bound("recharge.parallel", |c| Some(c.recharge.parallel as u64), 1, 256, "calls"),
    bound("recharge.calls_per_second_max", |c| Some(c.recharge.calls_per_second_max.into()), 1, 10_000, "calls"),
    bound("recharge.user_open_max", |c| Some(c.recharge.user_open_max as u64), 1, 1_000, "orders"),
    bound("recharge.user_creates_per_minute_max", |c| Some(c.recharge.user_creates_per_minute_max.into()), 1, 10_000, "orders"),
    bound("recharge.open_max", |c| Some(c.recharge.open_max), 1, 10_000_000, "orders"),
    bound("recharge.follow_hours", |c| Some(c.recharge.follow_hours), 1, 720, "hours"),
];

#[cfg(test)]
mod tests {
    use crate::config::secret::Secret;
    use crate::config::tests::{OWN_SECRET, assert_refused, file, load};

    #[test]
    fn recharges_need_a_deployment_and_a_secret() {
        let secret = format!("proof_secret = \"{OWN_SECRET}\"");
        assert_refused(&[
            ("[recharge]\nenabled = true", "recharge.deployment is missing"),
            ("[recharge]\nenabled = true\ndeployment = \"a\"", "recharge.proof_secret is missing"),
            ("[recharge]\ndeployment = \"A\"", "recharge.deployment = "),
            ("[recharge]\ndeployment = \"a.b\"", "recharge.deployment = "),
            ("[recharge]\nproof_secret = \"short\"", "recharge.proof_secret = ***"),
            ("[recharge]\nduplicate = \"credit\"", "recharge.duplicate"),
            ("[recharge]\nnotices_keep_hours = 0", "recharge.notices_keep_hours = 0: must be "),
            ("[recharge]\nquery_cap_ms = 14999", "recharge.query_cap_ms = 14999: must be "),
        ]);
        let (new, old) = (file(OWN_SECRET), file(""));
        let text = format!("[recharge]\nenabled = true\ndeployment = \"live\"\n{secret}");
        // All that is its own is there; its channels stand elsewhere.
        assert_refused(&[(&text, "channels is missing")]);
        let files = format!(
            "[recharge]\nproof_secret_file = \"{}\"\nprevious_proof_secret_file = \"{}\"",
            new.path().display(),
            old.path().display()
        );
        let config = load(&files, &[]).expect("loaded").recharge;
        assert_eq!(config.proof_secret, Some(Secret::new(OWN_SECRET)));
        assert_eq!(config.previous_proof_secret, None);
    }
}
