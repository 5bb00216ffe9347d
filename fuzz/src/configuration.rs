use std::fs;

use ubscore::config::{Config, Error, Overrides};

use super::scratch;

/// Stands for a secret: no message may repeat it.
const MARKER: &str = "sesame";

/// The text of a configuration file.
pub fn check(bytes: &[u8]) {
    // The standard library refuses bytes that are not text.
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let directory = scratch();
    let path = directory.path().join("ubscore.toml");
    fs::write(&path, text).expect("written");
    let secret = names_a_secret(text);
    match Config::load(Some(&path), Overrides::default(), true) {
        Ok(config) => {
            config.validate(true).expect("loading validates");
            config.http.accept_wait_ms();
            config.outcomes.keep();
            config.outcomes.rate_max(config.engine.outcomes_max);
            assert!(!secret || !format!("{config:?}").contains(MARKER), "{config:?}");
        }
        Err(error) => {
            let said = chain(&error);
            assert!(!secret || !said.contains(MARKER), "{said}");
            check_error(&error, text, &path.display().to_string());
        }
    }
}

/// An error names the key, or file and line, for the operator.
fn check_error(error: &Error, text: &str, file: &str) {
    let said = error.to_string();
    match error {
        Error::Syntax { line, .. } => {
            assert!(said.starts_with(&format!("{file} line {line}: ")), "{said}");
            assert!((1..=text.split('\n').count()).contains(line), "{said}");
        }
        Error::Key { key, origin, .. } => {
            assert!(!key.is_empty() && said.starts_with(&format!("{key}: ")), "{said}");
            assert_eq!(origin, file, "{said}");
        }
        Error::Range { key, .. } => assert!(said.starts_with(&format!("{key} = ")), "{said}"),
        Error::Missing { key, .. } => assert!(said.starts_with(&format!("{key} is ")), "{said}"),
        Error::Twice { key, .. } => assert!(said.starts_with(&format!("{key} and ")), "{said}"),
        Error::SecretFile { key, .. } => {
            assert!(said.starts_with(&format!("{key} = ")), "{said}");
        }
        Error::Read { .. } | Error::NoFile => panic!("{said}"),
    }
}

/// The error and all its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        said += &format!(": {error}");
        source = error.source();
    }
    said
}

/// Whether the marker stands in the text once, as the value of a secret in one line.
fn names_a_secret(text: &str) -> bool {
    let key = |line: &str| {
        let value = line.trim_start().strip_prefix("secret = \"");
        value.or(line.trim_start().strip_prefix("webhook_url = \"")).is_some()
    };
    text.matches(MARKER).count() == 1 && text.lines().any(|line| line.contains(MARKER) && key(line))
}
