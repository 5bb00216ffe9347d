//! The callers of a node, by their tokens: services with their signers, viewers, and admins. Tokens
//! of users, venues and other audiences are refused.

use alloy_primitives::Address;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chain::payload;
use hyper::header::AUTHORIZATION;
use serde::Deserialize;

use crate::http::auth::Role;
use crate::http::refusal::Refusal;
use crate::http::request::Call;
use crate::http::service::Intake;
use domain::code::Code;

/// The header with the token of a second operator.
pub const X_APPROVER: &str = "x-approver-authorization";

/// The claims of a service beside its name.
#[derive(Clone, Debug, Default, Deserialize)]
struct ServiceClaims {
    signers: Option<Vec<String>>,
    prefix: Option<String>,
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TxCaller {
    /// A service: it uses its signers, and ids that begin with its prefix.
    Service {
        /// The name.
        name: String,
        /// The signers that it may use.
        signers: Vec<Address>,
        /// The beginning of its ids; `None`: ids without a slash.
        prefix: Option<String>,
    },
    /// An operator with the right to read.
    Viewer,
    /// An operator with the right to command.
    Admin(u64),
}

impl TxCaller {
    /// The caller of a request.
    ///
    /// # Errors
    /// UNAUTHORIZED; FORBIDDEN for every other token.
    pub(super) fn of(intake: &Intake, call: &Call) -> Result<TxCaller, Refusal> {
        let claims = intake.claims(call)?;
        match claims.role {
            Some(Role::Admin) => Ok(TxCaller::Admin(claims.user_id)),
            Some(Role::Viewer) => Ok(TxCaller::Viewer),
            Some(Role::Service(owner)) => {
                let header = call.request.headers().get(AUTHORIZATION);
                let token = header.and_then(|header| header.to_str().ok()).unwrap_or("");
                service(owner.as_str(), token)
            }
            Some(Role::Venue(_)) | None => Err(Code::Forbidden.into()),
        }
    }

    /// The operator of a request, with the right to command.
    ///
    /// # Errors
    /// UNAUTHORIZED, FORBIDDEN.
    pub(super) fn admin(intake: &Intake, call: &Call) -> Result<u64, Refusal> {
        match TxCaller::of(intake, call)? {
            TxCaller::Admin(user) => Ok(user),
            TxCaller::Service { .. } | TxCaller::Viewer => Err(Code::Forbidden.into()),
        }
    }

    /// The second operator of a request: another one than `first`.
    ///
    /// # Errors
    /// FORBIDDEN: no second token, or one of the same operator, or without the role.
    pub(super) fn second(intake: &Intake, call: &Call, first: u64) -> Result<u64, Refusal> {
        let header = call.request.headers().get(X_APPROVER).and_then(|it| it.to_str().ok());
        let claims =
            header.map(|header| intake.verifier.verify(Some(header), intake.clock.now_s()));
        match claims {
            Some(Ok(claims)) if claims.role == Some(Role::Admin) && claims.user_id != first => {
                Ok(claims.user_id)
            }
            _ => Err(Refusal::because(
                Code::Forbidden,
                format!(
                    "This needs the token of a second operator, made by token --txm, in the header \
                     {X_APPROVER}."
                ),
            )),
        }
    }

    /// The subject, as rows have it.
    pub(super) fn actor(&self) -> String {
        match self {
            TxCaller::Service { name, .. } => format!("service/{name}"),
            TxCaller::Viewer => "viewer".to_owned(),
            TxCaller::Admin(user) => admin(*user),
        }
    }

    /// Whether it may read the rows of a signer.
    pub(super) fn sees(&self, signer: Address) -> bool {
        match self {
            TxCaller::Service { signers, .. } => signers.contains(&signer),
            TxCaller::Viewer | TxCaller::Admin(_) => true,
        }
    }

    /// Checks that it may read the rows of a signer.
    ///
    /// # Errors
    /// FORBIDDEN.
    pub(super) fn may_see(&self, signer: Address) -> Result<(), Refusal> {
        if self.sees(signer) { Ok(()) } else { Err(Code::Forbidden.into()) }
    }

    /// Checks that it may make or cancel a request of this name.
    ///
    /// # Errors
    /// FORBIDDEN: not a service, another's signer, or an id outside of its prefix.
    pub(super) fn may_use(&self, signer: Address, keys: &[&str]) -> Result<(), Refusal> {
        let TxCaller::Service { signers, prefix, .. } = self else {
            return Err(Code::Forbidden.into());
        };
        if !signers.contains(&signer) {
            let message = "The token does not name this signer.";
            return Err(Refusal::because(Code::Forbidden, message));
        }
        let fits = |key: &&str| match prefix {
            Some(prefix) => key.starts_with(prefix),
            None => !key.contains('/'),
        };
        match keys.iter().find(|key| !fits(key)) {
            None => Ok(()),
            Some(key) => Err(Refusal::because(
                Code::Forbidden,
                format!("The token does not allow the key {key}."),
            )),
        }
    }
}

/// An operator, as rows have it.
pub(super) fn admin(user: u64) -> String {
    format!("admin/{user}")
}

/// The service of a verified header. A claim in a wrong form gives no rights.
fn service(name: &str, header: &str) -> Result<TxCaller, Refusal> {
    let token = header.split_once(' ').map_or("", |(_, token)| token.trim());
    let payload = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let claims = payload.and_then(|json| serde_json::from_slice::<ServiceClaims>(&json).ok());
    let ServiceClaims { signers, prefix } = claims.ok_or(Code::Unauthorized)?;
    let signers = signers.unwrap_or_default();
    let signers = signers.iter().filter_map(|text| payload::address(text).ok()).collect();
    let prefix = prefix.filter(|prefix| !prefix.is_empty());
    Ok(TxCaller::Service { name: name.to_owned(), signers, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(claims: &str) -> String {
        format!("Bearer x.{}.y", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_service_uses_its_signers_and_its_prefix() {
        let (own, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let of = |claims: &str| service("pay", &header(claims)).expect("a service");
        let caller = of(&format!(r#"{{"signers":["{own:#x}"],"prefix":"w/"}}"#));
        assert_eq!(caller.actor(), "service/pay");
        assert!(caller.may_use(own, &["w/1", "w/2"]).is_ok() && caller.may_see(own).is_ok());
        assert!(caller.may_use(own, &["w/1", "x/2"]).is_err());
        assert!(caller.may_use(other, &["w/1"]).is_err() && !caller.sees(other));
        let plain = of(&format!(r#"{{"signers":["{own:#x}"]}}"#));
        assert!(plain.may_use(own, &["1"]).is_ok() && plain.may_use(own, &["w/1"]).is_err());
        // Without the claim, and with a wrong one, there is no signer.
        for claims in ["{}", r#"{"signers":[]}"#, r#"{"signers":["*"]}"#] {
            assert!(of(claims).may_use(own, &["1"]).is_err(), "{claims}");
        }
        assert!(service("pay", &header(r#"{"signers":"*"}"#)).is_err());
        assert!(TxCaller::Admin(7).may_use(own, &["1"]).is_err());
        assert!(TxCaller::Viewer.sees(other));
    }
}
