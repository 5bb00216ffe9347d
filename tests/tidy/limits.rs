//! Limits of files and functions, errors that are texts, assertions, definitions that stand
//! twice, and the dependencies of the crates that know little.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::graph;
use crate::source::{self, parts};

/// The longest function, lines.
const FUNCTION_LINES_MAX: usize = 100;

/// The longest function of the file that lists the stages of the primary, lines.
const PRIMARY_LINES_MAX: usize = 70;

/// The longest file without its unit tests, lines.
const FILE_LINES_MAX: usize = 900;

/// Assertions in a thousand lines of production code, blank and comment lines not counted.
const ASSERTIONS_PER_1000_LINES_MIN: usize = 5;

/// The SQL half is rebuilt soon; until then its sizes stay.
const REBUILT_NEXT: [&str; 1] = ["src/postgres"];

/// Types of one name, with the reason. No file imports two of them under that name.
const NAMED_ALIKE: &[(&str, &str)] = &[
    ("Error", "the errors of a room"),
    ("Options", "the settings of a room"),
    ("Answer", "of UBSCore; of a participant to the coordinator; of a route to its client"),
    ("Checked", "a draft that has passed; a round of the audit"),
    ("Claim", "of a state about an operation; of a mark about the log's durable end"),
    ("Command", "of the command line; to UBSCore; of a venue"),
    ("Created", "the end of an order's create; the row of a request to the chain"),
    ("Effect", "of an operation on an amount; of a step on a worker"),
    ("Endpoint", "of a service that is called; of a chain"),
    ("EndpointAnswer", "of a service that is called; of a chain to a send"),
    ("Ending", "of a log; of a venue's session"),
    ("Facts", "of a snapshot; of a payment by its channel"),
    ("Hold", "of money in Funding; of coins for a request to the chain"),
    ("Kind", "of a mismatch; of a record"),
    ("Log", "a log that is open; its part of a backup's manifest"),
    ("Look", "of a venue at an order; at the heads of all endpoints"),
    ("Message", "of an alert; of a venue's session"),
    ("Notice", "of the engine to its process; of a payment channel"),
    ("Operations", "of a transfer in both stores; the part of the service for operators"),
    ("Order", "to UBSCore; to the owner of a signer"),
    ("Outcome", "of an operation; of a call by an operator"),
    ("Owner", "a subject of tokens; the process that acts for a signer"),
    ("Part", "of a statement; of the readiness; of a place in a posting"),
    ("Pending", "an action that waits for approval; an answer that is awaited"),
    ("Place", "of a record in the log; of a stream among the followers"),
    ("Postgres", "the server in a backup's manifest; the database of the writing process"),
    ("Progress", "of a replay; of the preparation of segments"),
    ("Ready", "a primary before its listeners; a row that may have its nonce"),
    ("Reader", "of the log; of the totals of each asset"),
    ("Reason", "of an unknown outcome; of a number that is not decided"),
    ("Refusal", "of a rebuild; of a request"),
    ("Refused", "a command by the service; a transfer by a limit"),
    ("Report", "of a round of the audit; of a recovery"),
    ("Requests", "for a round of the audit; for a snapshot"),
    ("Route", "to a participant; of a listener"),
    ("Row", "of the table of operations; a transfer as a step reads it"),
    ("Service", "the parts behind the listeners; the whole in another program"),
    ("Settled", "sums below the watermark; the end of a call"),
    ("SignError", "of a token; of a transaction"),
    ("State", "of a transfer; of an approval"),
    ("Step", "of the ledger; the label of a histogram"),
    ("TxId", "of a transaction on a chain; of one over several services"),
    ("Totals", "of one balance in UBSCore; of an asset over both stores"),
];

/// Sections of the configuration have the names of their rooms.
const SECTIONS: &str = "src/config/";

/// The production code of a release, without the parts that are rebuilt soon.
fn kept() -> Vec<(String, String)> {
    let files = source::production(&source::PRODUCTION).into_iter();
    files.filter(|(file, _)| !REBUILT_NEXT.iter().any(|room| file.starts_with(room))).collect()
}

/// Each function of a code: name, first line from 1, and lines.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let chars: Vec<char> = code.chars().collect();
    let (mut found, mut line, mut open) = (Vec::new(), 1, 0_usize);
    // Functions with an open body: name, first line, and the depth of the brace.
    let mut bodies: Vec<(String, usize, usize)> = Vec::new();
    let mut declared: Option<(String, usize)> = None;
    let mut at = 0;
    while at < chars.len() {
        let word: String =
            chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
        if !word.is_empty() {
            at += word.chars().count();
            if word == "fn" {
                let rest: String = chars[at..].iter().take(80).collect();
                let name = rest.trim_start().split(|c: char| !(c.is_alphanumeric() || c == '_'));
                let name = name.into_iter().next().unwrap_or("");
                if !name.is_empty() {
                    declared = Some((name.to_owned(), line));
                }
            }
            continue;
        }
        match chars[at] {
            '\n' => line += 1,
            // A declaration without a body.
            ';' if declared.is_some() && !is_in_brackets(&chars, at) => declared = None,
            '{' => {
                if let Some((name, first)) = declared.take() {
                    bodies.push((name, first, open));
                }
                open += 1;
            }
            '}' => {
                open = open.saturating_sub(1);
                if bodies.last().is_some_and(|(_, _, depth)| *depth == open) {
                    let (name, first, _) = bodies.pop().expect("just seen");
                    found.push((name, first, line - first + 1));
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Whether a `;` stands in the brackets of an array type, `[u8; 4]`.
fn is_in_brackets(chars: &[char], at: usize) -> bool {
    let before = chars[..at].iter().rev().take_while(|c| !['{', '}', ';'].contains(*c));
    let (mut opened, mut closed) = (0, 0);
    for c in before {
        opened += usize::from(*c == '[');
        closed += usize::from(*c == ']');
    }
    opened > closed
}

/// The functions and the files that are too long.
fn too_long(file: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    let mut found = Vec::new();
    if lines > FILE_LINES_MAX {
        found.push(format!("{file} has {lines} lines"));
    }
    let primary = file.ends_with("roles/primary.rs");
    let max = if primary { PRIMARY_LINES_MAX } else { FUNCTION_LINES_MAX };
    for (name, line, lines) in functions(&parts(text).code) {
        if lines > max {
            found.push(format!("{file}:{line}: {name} has {lines} lines"));
        }
    }
    found
}

#[test]
fn no_function_and_no_file_is_too_long() {
    let found: Vec<String> =
        kept().into_iter().flat_map(|(file, text)| too_long(&file, &text)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// The lines on which a code has an error that is a text: `Result<_, String>` or `Result<_, &str>`.
fn text_errors(code: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("Result<") {
        let (mut depth, mut error, mut comma) = (1_usize, String::new(), false);
        let mut before = String::new();
        for c in code[at + "Result<".len()..].chars() {
            match c {
                '<' | '(' | '[' => depth += 1,
                '>' if error.ends_with('-') => {}
                '>' | ')' | ']' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if c == ',' && depth == 1 {
                comma = true;
                before = std::mem::take(&mut error);
            } else {
                error.push(c);
            }
        }
        // A comma may stand behind the last parameter.
        let error = if error.trim().is_empty() { before.trim() } else { error.trim() };
        if comma && (error == "String" || error.starts_with('&') && error.ends_with("str")) {
            found.push(code[..at].lines().count());
        }
    }
    found
}

#[test]
fn an_error_is_a_type_and_no_text() {
    let mut found = Vec::new();
    for (file, text) in kept() {
        let lines = text_errors(&parts(&text).code);
        found.extend(lines.into_iter().map(|line| format!("{file}:{line}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The assertions of a code, those of the compiler among them. `unreachable!` is none: it stands
/// where an arm must be, not where a border is.
fn assertions(code: &str) -> usize {
    let words = [
        "assert!",
        "assert_eq!",
        "assert_ne!",
        "debug_assert!",
        "debug_assert_eq!",
        "debug_assert_ne!",
    ];
    let code = format!(" {code}");
    let count = |word: &str| {
        let starts = code.match_indices(word).map(|(at, _)| at);
        let before = |at: usize| code[..at].chars().next_back().unwrap_or(' ');
        starts.filter(|at| !(before(*at).is_alphanumeric() || before(*at) == '_')).count()
    };
    words.into_iter().map(count).sum()
}

/// The production code without the modules that only tests and models compile.
fn released() -> Vec<(String, String)> {
    let crates = source::PRODUCTION.iter();
    let files = crates.map(|folder| (folder, source::production(&[folder])));
    files.flat_map(|(folder, files)| graph::compiled(folder, files)).collect()
}

#[test]
fn both_sides_of_a_border_assert() {
    let (mut count, mut lines, mut rooms) = (0, 0, BTreeMap::<String, (usize, usize)>::new());
    for (file, text) in released() {
        let code = parts(&text).code;
        let found = assertions(&code);
        let length = code.lines().filter(|line| !line.trim().is_empty()).count();
        let names: Vec<&str> = file.split(['/', '.']).take(2).collect();
        let room = rooms.entry(names.join("/")).or_default();
        *room = (room.0 + found, room.1 + length);
        count += found;
        lines += length;
    }
    assert!(
        count * 1000 >= lines * ASSERTIONS_PER_1000_LINES_MIN,
        "{count} assertions in {lines} lines; by room: {rooms:?}"
    );
}

/// The public types of a code.
fn types(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in code.lines() {
        let Some(rest) = line.trim().strip_prefix("pub ") else { continue };
        let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
        if let Some(rest) = kinds.iter().find_map(|kind| rest.strip_prefix(kind)) {
            let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next();
            // In a macro a parameter stands for the name.
            found.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    found
}

/// The names of public types that stand in more than one file.
fn defined_twice(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for (file, text) in files {
        for name in types(&parts(text).code) {
            found.entry(name).or_default().insert(file.clone());
        }
    }
    found.retain(|_, files| files.len() > 1);
    found
}

fn is_named_alike(name: &str) -> bool {
    NAMED_ALIKE.iter().any(|(alike, _)| name == *alike)
}

#[test]
fn a_concept_has_one_definition() {
    // All crates at once: the parts of one program name a thing once.
    let files: Vec<_> =
        kept().into_iter().filter(|(file, _)| !file.starts_with(SECTIONS)).collect();
    let twice = defined_twice(&files);
    let found: Vec<_> = twice.iter().filter(|(name, _)| !is_named_alike(name)).collect();
    assert!(found.is_empty(), "{found:#?}");
    let once: Vec<_> = NAMED_ALIKE.iter().filter(|(name, _)| !twice.contains_key(*name)).collect();
    assert!(once.is_empty(), "no longer alike: {once:?}");
}

/// The forbidden crates among those that a package needs, by the output of `cargo tree`.
fn forbidden<'a>(tree: &str, words: &[&'a str]) -> Vec<&'a str> {
    let needed: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    words.iter().copied().filter(|word| needed.contains(word)).collect()
}

/// Goal: the manifests prove that UBSCore and the nouns know nothing of the world. Method: the
/// dependencies that cargo resolves for them.
#[test]
fn the_engine_and_the_nouns_need_no_runtime() {
    let world = ["tokio", "hyper", "tokio-postgres", "utoipa", "rustls", "jiff"];
    let database = ["tokio-postgres", "deadpool-postgres", "utoipa", "ubscore", "domain", "engine"];
    for (package, words) in [
        ("engine", &world[..]),
        ("domain", &[&world[..], &["serde", "wal", "bell"]].concat()),
        ("chain", &[&world[..], &["domain", "engine", "txm", "wal", "ubscore"]].concat()),
        ("txm", &database[..]),
    ] {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let arguments = ["tree", "--locked", "--offline", "--prefix", "none", "-e", "normal", "-p"];
        let output = Command::new(cargo)
            .args(arguments)
            .arg(package)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .output()
            .expect("cargo");
        let tree = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tree.starts_with(package), "{tree}");
        assert_eq!(forbidden(&tree, words), Vec::<&str>::new(), "{package}");
    }
}

/// Goal: each limit above finds a planted case, and leaves a sound one alone.
#[test]
fn a_planted_case_is_found() {
    let body = |lines: usize| "    let a = [0; 4];\n".repeat(lines - 2);
    let long = |lines: usize| {
        format!("trait T {{\n    fn none(&self) -> [u8; 4];\n}}\nfn f() {{\n{}}}\n", body(lines))
    };
    assert_eq!(too_long("src/a.rs", &long(100)), Vec::<String>::new());
    assert_eq!(too_long("src/a.rs", &long(101)), ["src/a.rs:4: f has 101 lines"]);
    let primary = "src/commands/roles/primary.rs";
    assert_eq!(too_long(primary, &long(71)), [format!("{primary}:4: f has 71 lines")]);
    assert_eq!(too_long("src/a.rs", &"// a\n".repeat(901)), ["src/a.rs has 901 lines"]);
    for odd in [
        "fn f() -> Result<u8, String> {}",
        "Result<(), &'static str>",
        "Result<Vec<(u8, u8)>, &str>",
        "Result<\n    u8,\n    String,\n>",
    ] {
        assert_eq!(text_errors(odd).len(), 1, "{odd}");
    }
    for sound in
        ["Result<String, Error>", "Result<String>", "Option<String>", "Result<fn(u8) -> String, E>"]
    {
        assert_eq!(text_errors(sound), Vec::<usize>::new(), "{sound}");
    }
    assert_eq!(
        assertions("assert!(a); debug_assert_eq!(a, b); prop_assert!(c); assert_eq!(a, a)"),
        3
    );
    assert_eq!(assertions("unreachable!(); x.assert_none(); a_debug_assert!(b)"), 0);
    let twice = ["domain/src/a.rs", "src/b.rs"]
        .map(|file| (file.to_owned(), "pub struct Amount(u64);\npub enum Error {}\n".to_owned()));
    let found = defined_twice(&twice);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["Amount", "Error"]);
    assert!(is_named_alike("Error") && !is_named_alike("Amount"));
    assert_eq!(defined_twice(&twice[..1]), BTreeMap::new());
    let tree = "engine v0.1.0 (/x/engine)\nwal v0.1.0\ntokio v1.54.1\ntokio-util v1\n";
    assert_eq!(forbidden(tree, &["tokio", "hyper", "rustls"]), ["tokio"]);
}
