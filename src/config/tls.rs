//! The files of TLS: the same two keys in `[http]`, `[ops]`, `[stream]` and `[callbacks]`.

use std::path::PathBuf;

use super::Error;

/// The files of a listener with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `http`, `ops`, `stream` or `callbacks`.
    pub section: &'static str,
    /// The certificate and the chain to its issuer.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// `None` if either file is absent.
    pub(super) fn new(
        section: &'static str,
        certificate: &Option<PathBuf>,
        key: &Option<PathBuf>,
    ) -> Option<TlsFiles> {
        Some(TlsFiles { section, certificate: certificate.clone()?, key: key.clone()? })
    }
}

/// Refuses a certificate without its key, and a key without its certificate. Each file comes with
/// its `section.key`.
pub(super) fn check(files: [(&'static str, &Option<PathBuf>); 2]) -> Result<(), Error> {
    let advice = "TLS needs a certificate and its private key";
    match files {
        [(key, None), (_, Some(_))] | [(_, Some(_)), (key, None)] => {
            Err(Error::Missing { key: key.into(), advice })
        }
        [(_, None), (_, None)] | [(_, Some(_)), (_, Some(_))] => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::refusal;

    #[test]
    fn a_certificate_and_its_key_are_given_together() {
        for section in ["http", "ops", "stream", "callbacks"] {
            for (given, missing) in
                [("tls_certificate_file", "tls_key_file"), ("tls_key_file", "tls_certificate_file")]
            {
                let said = refusal(&format!("[{section}]\n{given} = \"a.pem\""), &[]);
                assert!(said.starts_with(&format!("{section}.{missing} is missing")), "{said}");
            }
        }
    }
}
