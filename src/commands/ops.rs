//! The client of the operators' listener for the command line.
//!
//! A reader of the configuration's secret can act as any operator. The token made with it is valid
//! for a minute. With public keys there is no secret to sign with: the operator gives a token in a
//! file.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::cli::AccessArgs;
use crate::clock::Clock;
use crate::config::auth::Auth;
use crate::config::file::read_key_file;
use crate::config::{Config, Overrides};
use crate::http::auth::{Role, SignError, sign};
use crate::http::txm::X_APPROVER;
use crate::release;

/// Timeout for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for an answer. A halt waits for transfers under way, and the check before a resume is
/// slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the token is valid.
const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// A refusal by the service.
#[derive(Debug, thiserror::Error)]
#[error("{what} refused: {code}: {message}")]
pub struct Refused {
    /// The command, for people.
    what: String,
    /// The code, as in the README's table.
    pub code: String,
    /// The service's message.
    message: String,
}

/// The service could not be reached, or it did not answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {url}; is the service running there{tls}?")]
pub struct Unreachable {
    url: String,
    tls: &'static str,
    #[source]
    source: ureq::Error,
}

impl Unreachable {
    /// Whether the connection was refused: then no process listens at the address.
    pub fn is_refused(&self) -> bool {
        match &self.source {
            ureq::Error::ConnectionFailed => true,
            ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            _ => false,
        }
    }
}

/// A client with an operator's token.
pub struct Ops {
    url: String,
    token: String,
    /// The token of a second operator.
    approver: Option<String>,
    agent: ureq::Agent,
}

/// The listener that is asked, and the tokens that it accepts.
struct Asked<'a> {
    listen: SocketAddr,
    certificate: Option<&'a PathBuf>,
    auth: &'a Auth,
}

impl Ops {
    /// A client for the operator that the command line names.
    ///
    /// # Errors
    /// The configuration is wrong, or it has no secret to sign with.
    pub fn new(access: &AccessArgs, clock: &impl Clock) -> anyhow::Result<Ops> {
        let config = Config::load(access.config.as_deref(), Overrides::default(), access.dev)
            .context("load the configuration")?;
        let certificate = config.ops.tls_certificate_file.as_ref();
        Ops::ask(
            access,
            Asked { listen: config.ops.listen, certificate, auth: &config.auth },
            clock,
        )
    }

    /// A client of a node of the transaction manager, for the operator that the command line names.
    ///
    /// # Errors
    /// As [`Ops::new`].
    pub fn of_node(access: &AccessArgs, clock: &impl Clock) -> anyhow::Result<Ops> {
        let config = Config::load_txm(access.config.as_deref(), access.dev, false)
            .context("load the configuration")?;
        let (txm, auth) = (&config.txm, config.txm.auth.auth());
        let certificate = txm.tls_certificate_file.as_ref();
        Ops::ask(access, Asked { listen: txm.ops_listen, certificate, auth: &auth }, clock)
    }

    /// The same client with the token of a second operator, if there is a file of it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn approved_by(mut self, file: Option<&Path>) -> anyhow::Result<Ops> {
        self.approver = file.map(token_of).transpose()?;
        Ok(self)
    }

    fn ask(access: &AccessArgs, asked: Asked<'_>, clock: &impl Clock) -> anyhow::Result<Ops> {
        let Asked { listen, certificate, auth } = asked;
        let url = match &access.ops {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => super::configured::url(listen, certificate.is_some()),
        };
        let mut tls = TlsConfig::builder();
        if let Some(path) = access.ca.as_ref().or(certificate) {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(path)?));
        }
        let token = match &access.token_file {
            Some(file) => token_of(file)?,
            None => {
                let role = Some(Role::Admin);
                let signed = sign(auth, access.actor, role, TOKEN_LIFE, clock.now_s());
                signed.map_err(|error| match error {
                    SignError::NotShared(_) => {
                        anyhow::Error::new(error).context("give --token-file FILE")
                    }
                    error => error.into(),
                })?
            }
        };
        let agent = ureq::Agent::config_builder()
            .user_agent(release::USER_AGENT)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .http_status_as_error(false)
            .tls_config(tls.build())
            .build()
            .into();
        Ok(Ops { url, token, approver: None, agent })
    }

    /// Sends GET to an admin route and returns the answer's body. `path`: the path after
    /// `/admin/v1/`. `what`: the command's name in errors.
    ///
    /// # Errors
    /// The service cannot be reached, or it refuses with a code and a message.
    pub fn get(&self, what: &str, path: &str) -> anyhow::Result<Value> {
        let request = self.agent.get(self.address(path)).header("Authorization", self.bearer());
        self.read(what, request.call())
    }

    /// The same with POST and a body.
    ///
    /// # Errors
    /// As [`Ops::get`].
    pub fn post(&self, what: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(what, self.agent.post(self.address(path)), body)
    }

    /// The same with PUT and a body.
    ///
    /// # Errors
    /// As [`Ops::get`].
    pub fn put(&self, what: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send(what, self.agent.put(self.address(path)), body)
    }

    fn address(&self, path: &str) -> String {
        format!("{}/admin/v1/{path}", self.url)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn send(
        &self,
        what: &str,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let mut request = request.header("Authorization", self.bearer());
        if let Some(approver) = &self.approver {
            request = request.header(X_APPROVER, format!("Bearer {approver}"));
        }
        self.read(what, request.content_type("application/json").send(body.to_string()))
    }

    fn read(
        &self,
        what: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> anyhow::Result<Value> {
        let ops = &self.url;
        let mut answer = answer.map_err(|source| {
            let tls = match ops.starts_with("https:") {
                true => ", with a certificate for that name, by an issuer that --ca names",
                false => "",
            };
            Unreachable { url: ops.clone(), tls, source }
        })?;
        let text = answer.body_mut().read_to_string().context("read the answer")?;
        let body: Value = serde_json::from_str(&text).with_context(|| {
            format!("{ops} does not answer as ubscore does: {}", answer.status())
        })?;
        if !answer.status().is_success() {
            let part = |key: &str| body[key].as_str().unwrap_or("").to_owned();
            let (code, message) = (part("code"), part("message"));
            bail!(Refused { what: what.to_owned(), code, message });
        }
        Ok(body)
    }
}

/// The token in a file.
fn token_of(file: &Path) -> anyhow::Result<String> {
    let token = fs::read_to_string(file);
    Ok(token.with_context(|| format!("read {}", file.display()))?.trim().to_owned())
}

/// The certificates of a PEM file.
pub(super) fn certificates(path: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let what = || format!("read the certificates of {}", path.display());
    let pem = read_key_file(path).with_context(what)?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(what)? {
            certificates.push(certificate);
        }
    }
    ensure!(!certificates.is_empty(), "{}: no PEM of a certificate", path.display());
    Ok(certificates)
}
