//! `ubscore token`: prints a token for one user, venue or service.
//!
//! A reader of the secret can act as any user, so this needs no server and no password.

use std::io::Write;

use anyhow::Context;
use chain::payload::address_text;

use crate::cli::TokenArgs;
use crate::clock::Clock;
use crate::config::{Config, Overrides};
use crate::exit::Exit;
use crate::http::auth::{self, Owner, Role, SignerScope};

/// Writes only the token and a line break to `out`, so that it can be used in `$(…)`.
///
/// # Errors
/// The configuration is wrong or has no secret to sign with; nothing was written.
pub fn run(args: &TokenArgs, clock: &impl Clock, out: &mut impl Write) -> anyhow::Result<Exit> {
    let file = args.config.as_deref();
    let config = match args.txm {
        true => Config::load_txm(file, args.dev, false),
        false => Config::load(file, Overrides::default(), args.dev),
    };
    let config = config.context("load the configuration")?;
    let service = args.service.as_deref().and_then(Owner::new).map(Role::Service);
    let role = service.or(args.venue.map(Role::Venue)).or(args.role);
    // clap requires a user or a service.
    let (user, now_s) = (args.user.unwrap_or(0), clock.now_s());
    let token = match args.txm {
        true => {
            let signers = args.signers.iter().map(address_text).collect();
            let scope = SignerScope { signers, prefix: args.prefix.clone() };
            let auth = config.txm.auth.auth();
            auth::sign_scoped(&auth, user, role, Some(&scope), args.ttl, now_s)?
        }
        false => auth::sign(&config.auth, user, role, args.ttl, now_s)?,
    };
    writeln!(out, "{token}").context("write the token")?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tempfile::tempdir;

    use super::*;
    use crate::clock::Sleep;
    use crate::config::auth::Auth;
    use crate::config::secret::Secret;
    use crate::http::auth::{Claims, Unauthorized, Verifier};

    const SECRET: &str = "a secret of the tests, and of no one else";

    struct Fixed(u64);

    impl Clock for Fixed {
        fn now_ns(&self) -> u64 {
            self.0 * 1_000_000_000
        }

        fn monotonic_ns(&self) -> u64 {
            0
        }

        fn sleep(&self, _duration: Duration) -> Sleep {
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn the_token_stands_alone_and_lives_as_long_as_asked() {
        let directory = tempdir().expect("a temporary directory");
        let file = directory.path().join("ubscore.toml");
        fs::write(&file, format!("[auth]\nsecret = \"{SECRET}\"")).expect("written");
        let args = TokenArgs {
            user: Some(1001),
            role: Some(Role::Admin),
            venue: None,
            service: None,
            txm: false,
            signers: Vec::new(),
            prefix: None,
            ttl: Duration::from_secs(60),
            config: Some(file),
            dev: false,
        };
        let mut out = Vec::new();
        run(&args, &Fixed(1_000), &mut out).expect("a token");
        let line = String::from_utf8(out).expect("text");
        let token = line.strip_suffix('\n').expect("one line");
        assert!(!token.contains(char::is_whitespace), "{token:?}");

        let auth = Auth { secret: Some(Secret::new(SECRET)), leeway_s: 0, ..Auth::default() };
        let verifier = Verifier::new(&auth).expect("a key");
        let header = format!("Bearer {token}");
        let claims = Claims { user_id: 1001, role: Some(Role::Admin), expires_s: 1_060 };
        assert_eq!(verifier.verify(Some(&header), 1_059), Ok(claims));
        assert_eq!(verifier.verify(Some(&header), 1_060), Err(Unauthorized::Expired));
    }

    #[test]
    fn a_configuration_that_is_wrong_prints_nothing() {
        let args = TokenArgs {
            user: Some(1),
            role: None,
            venue: None,
            service: None,
            txm: false,
            signers: Vec::new(),
            prefix: None,
            ttl: Duration::from_secs(60),
            config: Some("/nowhere/ubscore.toml".into()),
            dev: false,
        };
        let mut out = Vec::new();
        let error = run(&args, &Fixed(1_000), &mut out).expect_err("no file");
        assert!(format!("{error:#}").contains("/nowhere/ubscore.toml"), "{error:#}");
        assert_eq!(out, b"");
    }
}
