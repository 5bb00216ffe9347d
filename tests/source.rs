//! The repository's own text, for the tests that hold house rules: files, comments, string
//! literals, and code without either.

use std::fs;
use std::path::Path;

/// The folders of Rust sources.
pub(crate) const RUST: [&str; 11] = [
    "src", "engine", "domain", "stream", "wal", "bell", "chain", "txm", "tests", "benches",
    "examples",
];

/// The folders of code that a release holds.
pub(crate) const PRODUCTION: [&str; 8] = [
    "src",
    "engine/src",
    "domain/src",
    "stream/src",
    "wal/src",
    "bell/src",
    "chain/src",
    "txm/src",
];

/// The files below `folder` with one of these endings, by path from the root, sorted.
pub(crate) fn files(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut paths, mut files) = (vec![root.join(folder)], Vec::new());
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let skipped = ["target", "corpus", "artifacts", "golden", "node_modules"];
            let entries = fs::read_dir(&path).expect("readable");
            let below = entries.map(|entry| entry.expect("readable").path());
            paths.extend(below.filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
                !path.is_dir() || !(skipped.contains(&name) || name.starts_with('.'))
            }));
        } else if has_ending(&path, endings) {
            let name = path.strip_prefix(root).expect("below the root").to_string_lossy();
            files.push((name.into_owned(), fs::read_to_string(&path).expect("text")));
        }
    }
    files.sort();
    assert!(!files.is_empty(), "{folder} holds no file that ends with {endings:?}");
    files
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    endings.iter().any(|ending| name.ends_with(ending))
}

/// Every Rust source below `folders`, up to its unit tests.
pub(crate) fn production(folders: &[&str]) -> Vec<(String, String)> {
    let files = folders.iter().flat_map(|folder| files(folder, &[".rs"]));
    files.map(|(name, text)| (name, without_tests(&text).to_owned())).collect()
}

/// A source up to its unit tests.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().expect("a first part")
}

/// A Rust source, taken apart.
pub(crate) struct Parts {
    /// The code: comments and the insides of literals are blanks, line breaks stay.
    pub(crate) code: String,
    /// Each comment line: its number from 1, and its text without the slashes.
    pub(crate) comments: Vec<(usize, String)>,
    /// Each string literal: the number of its first line, and its text as written.
    pub(crate) literals: Vec<(usize, String)>,
}

/// Takes a Rust source apart.
pub(crate) fn parts(text: &str) -> Parts {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Parts { code: String::new(), comments: Vec::new(), literals: Vec::new() };
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => end_of_line(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => end_of_block(&chars, at),
            '"' => end_of_string(&chars, at),
            'r' if !follows_word(&chars, at) => end_of_raw(&chars, at).unwrap_or(at),
            '\'' => end_of_char(&chars, at),
            _ => at,
        };
        if end == at {
            parts.code.push(chars[at]);
            line += usize::from(chars[at] == '\n');
            at += 1;
            continue;
        }
        let token: String = chars[at..end].iter().collect();
        if let Some(comment) = token.strip_prefix("//") {
            let comment = comment.trim_start_matches(['/', '!']).trim();
            parts.comments.push((line, comment.to_owned()));
        } else if token.starts_with(['"', 'r']) {
            let inside = token.trim_start_matches('r').trim_matches('#');
            let inside = inside.strip_prefix('"').and_then(|inside| inside.strip_suffix('"'));
            parts.literals.push((line, inside.unwrap_or(&token).to_owned()));
        }
        parts.code.extend(token.chars().map(|c| if c == '\n' { c } else { ' ' }));
        line += token.matches('\n').count();
        at = end;
    }
    parts
}

/// Whether the character before `at` belongs to a word. The `b` of a byte string does not.
fn follows_word(chars: &[char], at: usize) -> bool {
    let before = at.checked_sub(1).map(|before| chars[before]);
    before.is_some_and(|before| before.is_alphanumeric() && before != 'b' || before == '_')
}

fn end_of_line(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| at + length)
}

fn end_of_block(chars: &[char], at: usize) -> usize {
    let end = chars[at..].windows(2).position(|pair| pair == ['*', '/']);
    end.map_or(chars.len(), |length| at + length + 2)
}

fn end_of_string(chars: &[char], at: usize) -> usize {
    let mut end = at + 1;
    while end < chars.len() && chars[end] != '"' {
        end += if chars[end] == '\\' { 2 } else { 1 };
    }
    (end + 1).min(chars.len())
}

/// The end of a raw string that begins at `at`; `None` if none does.
fn end_of_raw(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut end = open + 1;
    while end < chars.len() {
        let closes = chars[end] == '"'
            && chars[end + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closes {
            return Some(end + 1 + hashes);
        }
        end += 1;
    }
    Some(end)
}

/// The end of a character literal; `at` itself for a lifetime.
fn end_of_char(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            let close = chars[at + 3..].iter().position(|c| *c == '\'');
            close.map_or(at, |length| at + 3 + length + 1)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

#[test]
fn a_source_is_taken_apart() {
    let text = "/// Doc \"no\".\nfn f<'a>(x: &'a str) -> char { // tail\n    \
        g(\"a // \\\" b\", r#\"raw \"x\" \"#, b\"z\");\n    '\\n' /* in */ }\n";
    let parts = parts(text);
    let comments = [(1, "Doc \"no\".".to_owned()), (2, "tail".to_owned())];
    assert_eq!(parts.comments, comments);
    let literals = ["a // \\\" b", "raw \"x\" ", "z"].map(|text| (3, text.to_owned()));
    assert_eq!(parts.literals, literals);
    assert_eq!(parts.code.lines().count(), text.lines().count());
    for gone in ["Doc", "tail", "raw", "in", "\\n"] {
        assert!(!parts.code.contains(gone), "{gone} is still in {:?}", parts.code);
    }
    assert!(parts.code.contains("fn f<'a>(x: &'a str) -> char {"));
}
