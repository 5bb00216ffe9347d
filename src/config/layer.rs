//! The sources of keys: one layer is one source, with its keys and its name in errors.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use figment::error::Kind;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::{Config, Error, bounds};

/// The prefix of this program's variables.
const ENVIRONMENT_PREFIX: &str = "UBSCORE__";

/// Pairs of keys that give the same thing: a value or the file that holds it, or two units.
const TWINS: [(&str, &str, &str); 10] = [
    ("recharge", "proof_secret", "proof_secret_file"),
    ("recharge", "previous_proof_secret", "previous_proof_secret_file"),
    ("auth", "secret", "secret_file"),
    ("auth", "previous_secret", "previous_secret_file"),
    ("postgres", "url", "url_file"),
    ("alert", "webhook_url", "webhook_url_file"),
    ("txm", "postgres_url", "postgres_url_file"),
    ("webhooks", "url", "url_file"),
    ("webhooks", "secret", "secret_file"),
    ("outcomes", "keep_minutes", "keep_hours"),
];

/// The sections of tables by name, each with the keys of its tables.
const BY_NAME: [(&str, &str); 3] = [
    ("participants", "url, secret_file and kind"),
    ("followers", "url and secret_file"),
    ("channels", "kind, asset and the keys of its merchant"),
];

/// One source of keys, merged by figment over the one below.
#[derive(Clone)]
pub(super) struct Layer {
    /// Its name in errors: "the environment" or a file.
    pub(super) origin: String,
    /// Sections, and the keys in them, as given.
    pub(super) keys: Dict,
}

impl Layer {
    /// No keys.
    pub(super) fn empty() -> Self {
        Self { origin: "the defaults".to_owned(), keys: Dict::new() }
    }

    /// Reads a TOML file. Figment's own reader is not used, because its errors quote the line,
    /// which may hold a secret.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let keys = toml::from_str(&text).map_err(|error: toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start);
            Error::Syntax {
                path: path.to_owned(),
                line: text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1,
                problem: error.message().to_owned(),
            }
        })?;
        Ok(Self { origin: path.display().to_string(), keys })
    }

    /// `UBSCORE__HTTP__LISTEN=…` becomes `http.listen`. Every value is text until the merge.
    pub(super) fn from_environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let mut layer = Self { origin: "the environment".to_owned(), keys: Dict::new() };
        for (name, value) in variables {
            // A name that is not UTF-8 is not a key.
            let Some(path) = name.to_str().and_then(|name| name.strip_prefix(ENVIRONMENT_PREFIX))
            else {
                continue;
            };
            let path = path.to_lowercase();
            let refuse = |problem: &str| Error::Key {
                key: path.replace("__", "."),
                problem: problem.to_owned(),
                origin: layer.origin.clone(),
            };
            let Some(value) = value.to_str() else {
                return Err(refuse("not UTF-8"));
            };
            let (tables, key) = split(&path);
            let mut keys = &mut layer.keys;
            for table in tables {
                let entry = keys.entry(table.to_owned());
                let entry = entry.or_insert_with(|| Value::from(Dict::new()));
                let Value::Dict(_, below) = entry else {
                    return Err(refuse("its section is given as a value"));
                };
                keys = below;
            }
            // Two spellings of one name are refused: the environment's order would choose.
            if keys.contains_key(key) {
                return Err(refuse("given twice"));
            }
            keys.insert(key.to_owned(), Value::from(value));
        }
        Ok(layer)
    }

    /// Refuses values of a wrong type, without conversions.
    pub(super) fn extract_strictly(&self) -> Result<(), Error> {
        Figment::from(self.clone()).extract::<Config>().map(drop).map_err(describe)
    }

    /// Refuses two keys that give the same thing.
    pub(super) fn refuse_twins(&self) -> Result<(), Error> {
        for (section, one, other) in TWINS {
            if self.holds(section, one) && self.holds(section, other) {
                let [key, other] = [one, other].map(|key| format!("{section}.{key}"));
                return Err(Error::Twice { key, other, origin: self.origin.clone() });
            }
        }
        Ok(())
    }

    /// Removes both keys of a pair if `upper` gives one of them.
    pub(super) fn yield_twins(&mut self, upper: &Self) {
        for (section, one, other) in TWINS {
            if (upper.holds(section, one) || upper.holds(section, other))
                && let Some(Value::Dict(_, keys)) = self.keys.get_mut(section)
            {
                keys.remove(one);
                keys.remove(other);
            }
        }
    }

    /// Whether it has this key.
    pub(super) fn holds(&self, section: &str, key: &str) -> bool {
        self.keys.get(section).and_then(Value::as_dict).is_some_and(|keys| keys.contains_key(key))
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.keys.clone()))
    }
}

/// The tables of a variable's path, and the key in them: `http__listen` is `listen` in `http`. In
/// [`BY_NAME`] a table has a name, which may hold `__`; a key does not.
fn split(path: &str) -> (Vec<&str>, &str) {
    match path.split_once("__") {
        None => (Vec::new(), path),
        Some((section, rest)) if BY_NAME.iter().any(|(by_name, _)| section == *by_name) => {
            match rest.rsplit_once("__") {
                Some((name, key)) => (vec![section, name], key),
                None => (vec![section], rest),
            }
        }
        // The one section with sections below it.
        Some(("txm", rest)) if let Some((below, key)) = rest.split_once("__") => {
            (vec!["txm", below], key)
        }
        Some((section, key)) => (vec![section], key),
    }
}

/// The keys of the tables in the section of this path, if they have names.
fn by_name(path: &[String]) -> Option<&'static str> {
    let section = path.first()?;
    BY_NAME.iter().find(|(by_name, _)| section == by_name).map(|(_, keys)| *keys)
}

/// Whether the value of a key in a table by name is no secret: a kind, and each key of a channel,
/// which names files alone.
fn is_shown(path: &[String]) -> bool {
    let of_channel = path.len() > 2 && path.first().is_some_and(|section| section == "channels");
    of_channel || path.last().is_some_and(|key| key == "kind")
}

/// Turns figment's error into ours: the key as `section.key`, and no secret in the text.
pub(super) fn describe(error: figment::Error) -> Error {
    let mut path = error.path.clone();
    let problem = match &error.kind {
        Kind::UnknownField(name, known) => {
            // Figment appends the unknown name to the path in some cases only.
            if path.last() != Some(name) {
                path.push(name.clone());
            }
            format!("unknown key; known are {}", known.join(", "))
        }
        // The kind's own text would quote the value, which may be a secret.
        _ if TWINS.iter().any(|(section, key, _)| path == [*section, *key]) => {
            "must be text".to_owned()
        }
        kind => match by_name(&path).filter(|_| !is_shown(&path)) {
            Some(keys) => match path.len() {
                1 => format!("must be tables of {keys}"),
                2 => format!("must be a table of {keys}"),
                _ => "must be text".to_owned(),
            },
            None => kind.to_string(),
        },
    };
    let key = path.join(".");
    let allowed = bounds()
        .find(|bound| bound.key == key)
        .map_or_else(String::new, |bound| format!("; allowed: {}", bound.allowed()));
    let origin = error.metadata.map_or_else(|| "an unknown place".into(), |m| m.name);
    Error::Key { key, problem: format!("{problem}{allowed}"), origin: origin.into_owned() }
}
