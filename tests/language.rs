//! Plain language as a test: sentences that are hard to read, words that errors and pages avoid,
//! blanks that a lost `\` leaves in a message, and comment lines that are too wide.

use crate::source::{self, Parts, parts};

/// Clauses that may stand in a thousand words of comment or page.
const CLAUSES_PER_1000_WORDS_MAX: usize = 3;

/// Texts up to this length are not counted: one clause would be too many.
const WORDS_MIN: usize = 100;

/// The widest line that holds a comment, columns: as rustfmt keeps it for code.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Words for persons and things without a name. A sentence with a noun is shorter and clearer.
const PERSONS: [&str; 10] = [
    "who",
    "whom",
    "whose",
    "whoever",
    "whatever",
    "whichever",
    "somebody",
    "anybody",
    "nobody",
    "everybody",
];

/// Behind `what`, these begin a clause that stands in for a noun.
const AFTER_WHAT: [&str; 24] = [
    "is", "was", "are", "were", "has", "had", "it", "they", "comes", "came", "becomes", "became",
    "stands", "stood", "goes", "may", "can", "must", "one", "we", "each", "an", "a", "the",
];

/// Neither a message nor a page holds these.
const FORBIDDEN: [&str; 7] =
    ["somebody", "nobody", "whoever", "whatever", "become of", "held up", "told"];

/// Texts that are written anew together with their code, soon: the SQL half.
const REBUILT_NEXT: [&str; 1] = ["src/postgres"];

/// Files that hold planted odd sentences or the words themselves.
const ABOUT_LANGUAGE: [&str; 1] = ["tests/language.rs"];

/// Files in these rooms that are written in plain language already.
const WRITTEN_ANEW: [&str; 3] =
    ["src/postgres/admin", "src/postgres/database.rs", "src/postgres/flight"];

fn is_exempt(file: &str) -> bool {
    if WRITTEN_ANEW.iter().any(|room| file.starts_with(room)) {
        return false;
    }
    let rebuilt = REBUILT_NEXT.iter().any(|room| file.starts_with(room));
    rebuilt && file.ends_with(".rs") || ABOUT_LANGUAGE.contains(&file)
}

/// The words of a text in lower case, with whether only blanks stand before each.
fn words(text: &str) -> Vec<(String, bool)> {
    let (mut words, mut word, mut between) = (Vec::new(), String::new(), String::new());
    for c in text.chars().chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.extend(c.to_lowercase());
        } else {
            if !word.is_empty() {
                let blank = between.chars().all(char::is_whitespace);
                words.push((std::mem::take(&mut word), blank));
                between.clear();
            }
            between.push(c);
        }
    }
    words
}

/// The hard clauses of a text, as written.
fn clauses(text: &str) -> Vec<String> {
    let words = words(text);
    let mut found = Vec::new();
    for (index, (word, _)) in words.iter().enumerate() {
        if PERSONS.contains(&word.as_str()) {
            found.push(word.clone());
        }
        if let ("what", Some((next, true))) = (word.as_str(), words.get(index + 1))
            && AFTER_WHAT.contains(&next.as_str())
        {
            found.push(format!("what {next}"));
        }
    }
    found
}

/// The forbidden words of a text.
fn forbidden(text: &str) -> Vec<&'static str> {
    let joined: Vec<String> = words(text).into_iter().map(|(word, _)| word).collect();
    let joined = format!(" {} ", joined.join(" "));
    FORBIDDEN.into_iter().filter(|word| joined.contains(&format!(" {word} "))).collect()
}

/// Words of letters, as they are counted.
fn count(text: &str) -> usize {
    text.split(|c: char| !(c.is_ascii_alphabetic() || c == '\'')).filter(|w| !w.is_empty()).count()
}

/// The clauses of a text that has too many of them.
fn crowded(text: &str) -> Option<Vec<String>> {
    let (clauses, words) = (clauses(text), count(text));
    let many = clauses.len() * 1000 > words * CLAUSES_PER_1000_WORDS_MAX;
    (words >= WORDS_MIN && many).then_some(clauses)
}

/// The comments of a file, by the sign that its format gives them; a page is all text.
fn prose(file: &str, text: &str) -> String {
    let comments = |signs: &[&str]| {
        let lines = text.lines().filter_map(|line| {
            let line = line.trim_start();
            signs.iter().find_map(|sign| line.strip_prefix(sign))
        });
        lines.map(|line| line.trim_start_matches(['/', '!'])).collect::<Vec<_>>().join(" ")
    };
    match file.rsplit('.').next() {
        Some("rs" | "js") => comments(&["//"]),
        Some("css") => comments(&["/*", "*"]),
        Some("sql") => comments(&["--"]),
        Some("md" | "html") => text.to_owned(),
        _ => comments(&["#"]),
    }
}

/// The operators' files beside the pages, and scripts: comments and descriptions.
fn configuration() -> Vec<(String, String)> {
    let endings = [".toml", ".yml", ".yaml", ".json", ".service", ".conf", "Dockerfile", ".py"];
    let config = source::files("config", &endings).into_iter();
    let packaging = source::files("packaging", &endings);
    config.chain(packaging).chain(source::files("examples", &[".py"])).collect()
}

fn pages() -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let single = ["README.md", "CHANGELOG.md", "benches/README.md", "tests/acceptance.md"];
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect("a page");
    let single = single.into_iter().map(|file| (file.to_owned(), read(file)));
    single.chain(source::files("docs", &[".md"])).collect()
}

fn console() -> Vec<(String, String)> {
    source::files("src/http/ops/console", &[".js", ".css", ".html"])
}

/// The schema: tables, and functions with triggers.
fn sql() -> Vec<(String, String)> {
    ["config/migrations", "config/migrations-txm", "src/postgres/sql", "src/postgres/txm/sql"]
        .into_iter()
        .flat_map(|folder| source::files(folder, &[".sql"]))
        .collect()
}

fn rust() -> Vec<(String, String)> {
    let folders = source::RUST.into_iter().chain(["fuzz", "build.rs"]);
    folders.flat_map(|folder| source::files(folder, &[".rs"])).collect()
}

/// Fails with every finding, a line each.
fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_comment_names_the_thing_and_puts_it_first() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect("text");
    let single = ["Cargo.toml", "Makefile", "deny.toml", ".cargo/mutants.toml"];
    let single = single.into_iter().map(|file| (file.to_owned(), read(file)));
    let all = rust().into_iter().chain(sql()).chain(pages()).chain(configuration());
    let all = all.chain(console());
    let mut found = Vec::new();
    for (file, text) in all.chain(single) {
        if let Some(clauses) = crowded(&prose(&file, &text)).filter(|_| !is_exempt(&file)) {
            found.push(format!("{file}: {clauses:?}"));
        }
    }
    assert_none(&found);
}

#[test]
fn messages_and_pages_avoid_words_without_a_noun() {
    let mut found = Vec::new();
    let mut check = |file: &str, line: usize, text: &str| {
        for word in forbidden(text) {
            found.push(format!("{file}:{line}: {word:?} in {text:?}"));
        }
    };
    for (file, text) in source::production(&source::PRODUCTION) {
        if is_exempt(&file) {
            continue;
        }
        let Parts { comments, literals, .. } = parts(&text);
        // Words alone are names: of a field, a label or a directory.
        let messages = literals.iter().filter(|(_, text)| text.contains(' '));
        messages.for_each(|(line, text)| check(&file, *line, text));
        if file.starts_with("src/cli") {
            comments.iter().for_each(|(line, text)| check(&file, *line, text));
        }
    }
    for (file, text) in pages().into_iter().chain(sql()).chain(configuration()).chain(console()) {
        if is_exempt(&file) {
            continue;
        }
        // Names of tests stand in the list as they are in the sources.
        let text = if file == "tests/acceptance.md" { text.replace('_', "") } else { text };
        for (index, line) in text.lines().enumerate() {
            check(&file, index + 1, line);
        }
    }
    assert_none(&found);
}

/// The beginnings of printed lines that are rows of a table, a bar of progress, or the guide of
/// `serve --dev`: blanks align their columns.
const ALIGNED: [&str; 5] =
    ["{:<4}  {check", "{verdict:<4}  {duty", "{:width$}  -> ", "{bar:40}", "data directory   "];

/// The widest first column of a printed line, columns: one word, then blanks.
const LABEL_COLUMNS_MAX: usize = 12;

/// Whether a literal holds a run of blanks that its author did not want: a `\` at the end of a
/// line was lost. Blanks at the beginning of a printed line, or behind its label, align it.
fn has_lost_backslash(literal: &str) -> bool {
    // A `\` at the end of a line swallows the line break and all blanks behind it.
    let mut joined = String::new();
    for (index, part) in literal.split("\\\n").enumerate() {
        joined.push_str(if index == 0 { part } else { part.trim_start() });
    }
    let printed = joined.replace("\\n", "\u{1}").replace('\n', " ");
    let mut lines = printed.split('\u{1}').map(str::trim);
    if ALIGNED.iter().any(|row| printed.trim_start_matches(['\u{1}', ' ']).starts_with(row)) {
        return false;
    }
    lines.any(|line| {
        let (label, text) = line.split_once("  ").unwrap_or((line, ""));
        let blanks = text.chars().take_while(|c| *c == ' ').count() + 2;
        let labelled = !label.contains(' ') && label.len() + blanks <= LABEL_COLUMNS_MAX;
        if labelled { text.trim_start().contains("  ") } else { line.contains("  ") }
    })
}

#[test]
fn no_message_holds_two_blanks_in_a_row() {
    let mut found = Vec::new();
    for (file, text) in source::production(&source::PRODUCTION) {
        for (line, literal) in parts(&text).literals {
            if !is_exempt(&file) && has_lost_backslash(&literal) {
                found.push(format!("{file}:{line}: {literal:?}"));
            }
        }
    }
    assert_none(&found);
}

/// The numbers of the lines with a comment that are too wide.
fn wide(text: &str) -> Vec<usize> {
    let lines = text.lines().enumerate();
    let comments = lines.filter(|(_, line)| line.trim_start().starts_with("//"));
    let wide = comments.filter(|(_, line)| line.chars().count() > COMMENT_COLUMNS_MAX);
    wide.map(|(index, _)| index + 1).collect()
}

#[test]
fn a_comment_line_is_as_wide_as_a_line_of_code() {
    let mut found = Vec::new();
    for (file, text) in rust().into_iter().filter(|(file, _)| !is_exempt(file)) {
        found.extend(wide(&text).first().map(|line| format!("{file}:{line} is too wide")));
    }
    // No formatter keeps the width of SQL.
    for (file, text) in sql() {
        let mut lines = text.lines();
        let wide = lines.position(|line| line.chars().count() > COMMENT_COLUMNS_MAX);
        found.extend(wide.map(|line| format!("{file}:{} is too wide", line + 1)));
    }
    assert_none(&found);
}

/// Goal: each rule above finds a planted odd text, and leaves a plain one alone.
#[test]
fn an_odd_sentence_is_found() {
    let plain = "The worker commits a batch, and each call of it gets its answer. ".repeat(20);
    assert_eq!(crowded(&plain), None);
    let odd = format!("{plain} Whoever has asked is told what became of it.");
    assert_eq!(crowded(&odd), Some(vec!["whoever".to_owned(), "what became".to_owned()]));
    assert_eq!(crowded("Whoever asks, nobody answers what is asked."), None, "a short text");
    assert_eq!(clauses("What, the worker? What\nthe worker; whole; what to do"), ["what the"]);
    let comment = "let a = 1; // not at the beginning\n    /// Nobody.\n//! Somebody.\n";
    assert_eq!(clauses(&prose("src/x.rs", comment)), ["nobody", "somebody"]);
    assert_eq!(clauses(&prose("x.toml", "key = \"who\"\n# who\n")), ["who"]);
    assert_eq!(clauses(&prose("x.sql", "SELECT who;\n    -- who\n")), ["who"]);
    assert!(!is_exempt("src/postgres/sql/fence.sql") && is_exempt("src/postgres/pin.rs"));
    assert_eq!(forbidden("What has\nbecome of it was Told."), ["become of", "told"]);
    assert_eq!(forbidden("the toldness of nobodies"), Vec::<&str>::new());
    assert_eq!(forbidden("`held_up`, held down, holds up"), Vec::<&str>::new());
    assert!(has_lost_backslash("halted;\n                        next: resume"));
    assert!(has_lost_backslash("holds two  blanks") && has_lost_backslash("a \\\n  b  c"));
    assert!(!has_lost_backslash("halted; \\\n      next: resume"));
    assert!(!has_lost_backslash("halted\\n  the reason") && !has_lost_backslash("  indented"));
    assert!(!has_lost_backslash("next     ubscore serve") && has_lost_backslash("a  b  c"));
    let line = |columns: usize| format!("    // {}\n", "x".repeat(columns - 7));
    assert_eq!(wide(&line(100)), Vec::<usize>::new());
    assert_eq!(wide(&format!("let a = 1;\n{}", line(101))), [2]);
}
