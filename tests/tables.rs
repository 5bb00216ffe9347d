//! The tables of operations and of claims are read everywhere and written once: in the crate
//! `domain`.

use std::collections::BTreeSet;
use std::process::Command;

use crate::source;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The folders of production code beside the crate `domain`.
const FOLDERS: [&str; 4] = ["src", "engine/src", "wal/src", "bell/src"];
/// Files that compare states or operations by hand.
const EXEMPT: [&str; 2] = [
    "src/postgres/repair_writer.rs",
    // A test's naive model of postings by name: it must not read the table that it judges.
    "engine/src/trading/names.rs",
];
/// The most files that a new operation may change.
const FILES_MAX: usize = 5;

/// The code of a file without comments and without its unit tests.
fn code(text: &str) -> String {
    let lines =
        source::without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The first variant of one of these enums that `text` names, such as `Op::Refund`.
fn variant<'a>(text: &'a str, enums: &[&str]) -> Option<&'a str> {
    starts(text, enums).next().map(|(start, end)| &text[start..end])
}

/// Start and end of each variant that `text` names. `Op::ALL` and `Op::from_name` are none.
fn starts<'a>(text: &'a str, enums: &'a [&str]) -> impl Iterator<Item = (usize, usize)> + 'a {
    text.match_indices("::").filter_map(move |(at, _)| {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let start = text[..at].rfind(|c| !is_word(c)).map_or(0, |before| before + 1);
        let name = text[at + 2..].split(|c| !is_word(c)).next().expect("a first part");
        let camel = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.contains(|c: char| c.is_ascii_lowercase());
        (camel && enums.contains(&&text[start..at])).then_some((start, at + 2 + name.len()))
    })
}

/// The part of `text` up to the bracket that closes the one before it.
fn balanced(text: &str) -> &str {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// The pattern of a match arm, its guard included: the end of `text`, which ends before `=>`.
fn pattern(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' | ']' => depth += 1,
            '(' | '[' => depth -= 1,
            '{' | '}' | ',' | ';' if depth == 0 => return &text[at + 1..],
            _ => {}
        }
        if depth < 0 {
            return &text[at + 1..];
        }
    }
    text
}

/// Places where `text` decides by hand instead of by a table, each with its variant.
fn by_hand(text: &str) -> Vec<String> {
    let code = code(text);
    // `approval` has a `State` of its own.
    let of_transfers = ["{State", " State,", " State}", "::State;"];
    let imports: Vec<&str> =
        code.split("use ").skip(1).map(|r| r.split(';').next().unwrap_or(r)).collect();
    let imports_state = imports.iter().any(|import| {
        import.contains("transfer::")
            && of_transfers.iter().any(|word| format!("{import};").contains(word))
    });
    let enums: &[&str] = if imports_state { &["Op", "State"] } else { &["Op"] };
    let mut found = Vec::new();
    let mut find = |what: &str, part: &str| {
        if let Some(variant) = variant(part, enums) {
            found.push(format!("{what} {variant}"));
        }
    };
    for (at, call) in code.match_indices("matches!(") {
        find("matches!", balanced(&code[at + call.len()..]));
    }
    for (at, _) in code.match_indices("=>") {
        find("an arm of a match on", pattern(&code[..at]));
    }
    for (at, word) in code.match_indices("let ") {
        let rest = &code[at + word.len()..];
        find(
            "a let of",
            rest.split(" = ").next().filter(|p| !p.contains(['{', ';'])).unwrap_or(""),
        );
    }
    for (start, end) in starts(&code, enums) {
        let (before, after) = (code[..start].trim_end(), code[end..].trim_start());
        let variant = &code[start..end];
        let compared = ["==", "!="];
        if compared.iter().any(|sign| before.ends_with(sign) || after.starts_with(sign)) {
            find("a comparison with", variant);
        }
        if after.starts_with("| ") {
            find("a list from", variant);
        }
        let next = after.strip_prefix(',').map(str::trim_start);
        let is_listed = |next: &str| starts(next, enums).next().is_some_and(|(at, _)| at == 0);
        if before.ends_with('[') && next.is_some_and(is_listed) {
            find("an array from", variant);
        }
    }
    found
}

#[test]
fn no_room_decides_by_hand_what_an_operation_or_a_state_means() {
    let mut wrong = Vec::new();
    for (file, text) in FOLDERS.iter().flat_map(|folder| source::files(folder, &[".rs"])) {
        if !EXEMPT.iter().any(|exempt| file.starts_with(exempt)) {
            wrong.extend(by_hand(&text).into_iter().map(|what| format!("{file}: {what}")));
        }
    }
    assert!(
        wrong.is_empty(),
        "read domain::transfer::{{op, claims}} instead:\n{}",
        wrong.join("\n")
    );
}

/// Goal: the finder finds each way to decide by hand, and nothing else. Method: one planted text
/// for each way; texts that only name or pass an operation.
#[test]
fn a_planted_match_on_an_operation_is_found() {
    let import = "use domain::transfer::{Decision, Op, State};\n";
    for planted in [
        "match op { Op::Withdraw => a, _ => b }",
        "match (decision, order.op) {\n    (Success, Op::Withdraw) => a,\n    (Success, _) => b,\n}",
        "match x { Some(op @ (Op::Deposit | Op::Refund)) => a, _ => b }",
        "matches!(ask.op, Op::ExtDeposit | Op::ExtWithdraw)",
        "matches!(command, Order { op: Op::Deposit, .. })",
        "if op == Op::Withdraw { -amount } else { amount }",
        "state != State::Failed",
        "let (Some(clean), Op::ExtWithdraw) = (&self.clean, op) else { return };",
        "if let State::Failed | State::RolledBack = state {}",
        "for op in [Op::Withdraw, Op::Deposit, Op::Refund] {}",
        "match state { State::Committed => StatusCode::OK, _ => StatusCode::ACCEPTED }",
    ] {
        let found = by_hand(&format!("{import}fn f() {{ {planted} }}\n"));
        assert!(!found.is_empty(), "{planted}");
    }
    for sane in [
        "let ask = Ask { op: Op::Withdraw, intent };",
        "match direction { Direction::FundingToSpot => (Op::Deposit, true), Direction::SpotToFunding => (Op::Withdraw, false) }",
        "match seen(Op::Deposit) { Some(Success) => a, None => b }",
        "names.map(|_| Op::Deposit)",
        "Op::ALL.map(Op::name)",
        "let row = self.row(&intent, State::Init);",
        "// match op { Op::Withdraw => a, _ => b }",
    ] {
        assert_eq!(by_hand(&format!("{import}fn f() {{\n{sane}\n}}\n")), Vec::<String>::new());
    }
    let other = "use crate::approval::State;\nfn f() { state == State::Approved }\n";
    assert_eq!(by_hand(other), Vec::<String>::new());
}

/// Checks a crate with one feature; its errors if it does not compile.
fn check(package: &str, feature: &str) -> Result<(), String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--quiet", "--locked", "--offline", "--color", "never"]);
    cargo.args(["--package", package, "--features", feature]).current_dir(ROOT);
    let output = cargo.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Goal: an operation without its row does not compile, and with it the program does. Method: the
/// operation that two features of `domain` plant: without its row and with it.
#[test]
fn a_new_operation_needs_its_row_and_nothing_else() {
    let refused = check("domain", "planted").expect_err("compiled an operation without a row");
    assert!(refused.contains("pattern `Op::Planted` not covered"), "{refused}");
    assert!(refused.contains("domain/src/transfer/op.rs"), "{refused}");
    let places = refused.lines().filter_map(|line| line.trim_start().strip_prefix("--> "));
    let places: BTreeSet<&str> = places.filter_map(|place| place.split(':').next()).collect();
    let tables = BTreeSet::from(["domain/src/transfer/claims.rs", "domain/src/transfer/op.rs"]);
    assert_eq!(places, tables, "{refused}");
    for package in ["domain", "engine", "ubscore"] {
        check(package, "domain/planted-row").unwrap_or_else(|errors| panic!("{package}: {errors}"));
    }
    let all = source::PRODUCTION.iter().flat_map(|folder| source::files(folder, &[".rs"]));
    let changed: Vec<String> =
        all.filter(|(_, text)| text.contains("Planted")).map(|(file, _)| file).collect();
    assert!(changed.len() <= FILES_MAX, "a new operation changes {changed:?}");
}
