//! House rules as a test: arrows between rooms, limits, seams, names of files, and tables that
//! must agree with the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::source;

/// The imports between rooms and files.
mod graph;

/// The limits of files, functions and names.
mod limits;

/// Every source file below `folder`, with its text up to the tests.
fn sources(folder: &str) -> Vec<(String, String)> {
    source::production(&[folder])
}

#[test]
fn the_log_knows_nothing_of_money_and_the_engine_nothing_of_the_world() {
    for (file, text) in sources("wal/src") {
        for word in ["ubscore::", "balance", "amount", "tokio"] {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            assert!(!code.clone().any(|line| line.contains(word)), "{file} has {word}");
        }
    }
    for (file, text) in sources("engine/src") {
        for word in ["tokio", "hyper", "async fn", ".await"] {
            assert!(!text.contains(word), "{file} has {word}");
        }
    }
    for (file, text) in sources("chain/src") {
        for word in ["tokio", "hyper", "async fn", ".await", "Instant", "SystemTime"] {
            assert!(!text.contains(word), "{file} has {word}");
        }
    }
    for (file, text) in sources("txm/src") {
        // Virtual time reaches all of it: a simulation runs it with tokio's paused clock.
        for word in ["std::time::Instant", "SystemTime", "std::thread::sleep"] {
            assert!(!text.contains(word), "{file} has {word}");
        }
    }
    for (file, text) in sources("src/adapters") {
        assert!(!text.contains("State::"), "{file} knows a transfer's state");
    }
}

/// Time, chance and the environment come through a seam: each word, and the only files that may
/// have it.
const SEAMS: &[(&str, &[&str])] = &[
    ("SystemTime::now", &["src/clock.rs"]),
    ("Instant::now", &["src/clock.rs", "src/commands/load.rs", "src/commands/load/venue.rs"]),
    ("Timestamp::now", &[]),
    // A signature of RSA asks for random numbers to blind its work; they do not show in it.
    ("rand::", &["src/channels/wechat/signature.rs", "src/entropy.rs"]),
    ("env::var", &["src/config.rs", "src/crash.rs", "src/environment.rs"]),
    ("env::args", &[]),
    // The network of channels stands behind one trait, which is built on the agent of endpoints.
    (
        "Agent::config_builder",
        &[
            "src/commands/channel_sim/courier.rs",
            "src/commands/ops.rs",
            "src/endpoint.rs",
            "src/telemetry/otlp.rs",
        ],
    ),
    (
        "use ring::",
        &[
            "src/channels/stripe/signature.rs",
            "src/channels/wechat/bill.rs",
            "src/channels/wechat/keys.rs",
            "src/channels/wechat/signature.rs",
            "src/recharge.rs",
            "src/recharge/proof.rs",
        ],
    ),
    (
        "tokio::time",
        &[
            "src/clock.rs",
            "src/commands/load.rs",
            "src/http/listener.rs",
            "src/http/request.rs",
            "src/postgres/connection.rs",
            "src/postgres/database.rs",
            "src/postgres/embedded.rs",
            "src/postgres/embedded/cluster.rs",
            "src/postgres/txm/listener.rs",
        ],
    ),
];

/// A crash point without a list is visited by no test, and a listed one that is nowhere in the code
/// never fires.
#[test]
fn every_crash_point_is_in_a_list_that_tests_walk() {
    use ubscore::crash::ALL_POINTS;
    let mut placed = BTreeSet::new();
    let folders = ["src", "engine/src", "txm/src"];
    for (_, text) in folders.into_iter().flat_map(sources) {
        for part in text.split("crash::point(\"").skip(1) {
            placed.insert(part.split('"').next().expect("a name").to_owned());
        }
    }
    let listed = ALL_POINTS.concat();
    assert_eq!(placed, listed.into_iter().map(str::to_owned).collect());
}

/// Story: release builds aborted on a panic. The last words of a thread after a failed disk, and
/// its exit code, were then those of the tests only.
#[test]
fn panics_unwind_in_every_profile() {
    let manifest = include_str!("../Cargo.toml");
    assert!(!manifest.contains("panic = "), "catch_unwind must see what the tests see");
}

#[test]
fn time_chance_and_environment_come_through_their_seams() {
    for (file, text) in sources("src")
        .into_iter()
        .chain(sources("engine/src"))
        .chain(sources("wal/src"))
        .chain(sources("bell/src"))
    {
        for (word, allowed) in SEAMS {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let found = code.clone().any(|line| line.contains(word));
            assert!(!found || allowed.contains(&file.as_str()), "{file} has {word}");
        }
    }
}

#[test]
fn unsafe_code_lives_in_two_files() {
    let files: BTreeSet<String> = sources("src")
        .into_iter()
        .chain(sources("engine/src"))
        .chain(sources("wal/src"))
        .chain(sources("bell/src"))
        .chain(sources("chain/src"))
        .chain(sources("txm/src"))
        .filter(|(_, text)| text.lines().any(|line| line.contains("unsafe {")))
        .map(|(file, _)| file)
        .collect();
    let known = ["engine/src/memory.rs", "wal/src/directory.rs"];
    assert_eq!(files.into_iter().collect::<Vec<_>>(), known);
}

#[test]
fn files_are_named_after_things() {
    for (file, _) in sources("src")
        .into_iter()
        .chain(sources("engine/src"))
        .chain(sources("wal/src"))
        .chain(sources("bell/src"))
        .chain(sources("chain/src"))
        .chain(sources("txm/src"))
    {
        let name = file.rsplit('/').next().expect("a name");
        let role =
            ["mod", "util", "utils", "helper", "helpers", "common", "misc", "types", "manager"];
        assert!(!role.contains(&name.trim_end_matches(".rs")), "{file} is named after a role");
    }
}

/// Every acceptance id of the specification, as the beginning of a test's name.
fn acceptance_ids() -> Vec<String> {
    let groups = [
        ("inv", 4),
        ("atk", 13),
        ("bal", 5),
        ("fsm", 6),
        ("cra", 6),
        ("con", 4),
        ("idp", 4),
        ("fnd", 6),
        ("mon", 4),
    ];
    let of_group = |(group, count)| (1..=count).map(move |number| format!("{group}_{number:03}_"));
    groups.into_iter().flat_map(of_group).collect()
}

/// The id that a name begins with.
fn acceptance_id<'a>(ids: &'a [String], name: &str) -> Option<&'a String> {
    ids.iter().find(|id| name.starts_with(id.as_str()))
}

/// The heading of the second table of `acceptance.md`.
const VENUES: &str = "\n## Venues\n";

/// The rows of a table of acceptance tests: id and test.
fn listed_tests(list: &str) -> Vec<(&str, &str)> {
    let rows = list.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let row = |line| {
        let cells: Vec<&str> = str::trim_matches(line, '|').split(" | ").map(str::trim).collect();
        let [id, name, shows] = cells[..] else { panic!("not three cells: {line}") };
        assert!(!shows.is_empty(), "{name}: what does it show?");
        (id, name.trim_matches('`'))
    };
    rows.map(row).collect()
}

/// The ids of holds and postings in a text, such as `HLD-001`.
fn venue_ids_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let is_id = |word: &&str| {
        let number =
            ["CNF-", "GTX-", "HLD-", "LSE-", "MLT-", "NON-", "RCH-", "RCV-", "RSB-", "SUB-"]
                .iter()
                .find_map(|group| word.strip_prefix(group));
        number.is_some_and(|number| number.len() == 3 && number.parse::<u16>().is_ok())
    };
    words.filter(is_id).map(str::to_owned).collect()
}

/// The tests of a source, each with the ids that its comment or its name has.
fn tests_with_ids(text: &str) -> Vec<(String, String)> {
    let (mut found, mut comment, mut is_test) = (Vec::new(), String::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push_str(words);
            continue;
        }
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            continue;
        }
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(name) = function.and_then(|rest| rest.split('(').next()).filter(|_| is_test) {
            let parts: Vec<&str> = name.split('_').take(2).collect();
            comment.push_str(&format!(" {}", parts.join("-").to_uppercase()));
            let ids: BTreeSet<String> = venue_ids_in(&comment).into_iter().collect();
            found.extend(ids.into_iter().map(|id| (id, name.to_owned())));
        }
        (comment, is_test) = (String::new(), false);
    }
    found
}

/// Goal: the list of the tests of holds, postings and venues is complete, and each of them exists.
/// Method: the second table of `acceptance.md` against the tests of all crates, both ways. A test
/// shows the ids that its comment names, or that its name begins with.
#[test]
fn every_id_of_venues_is_tested_and_listed() {
    let mut tests = BTreeSet::new();
    for folder in source::RUST {
        for (_, text) in source::files(folder, &[".rs"]) {
            tests.extend(tests_with_ids(&text));
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/acceptance.md")).expect("the list");
    let list = list.split(VENUES).nth(1).expect("the second table");
    let rows = listed_tests(list);
    let listed: BTreeSet<(String, String)> =
        rows.iter().map(|(id, name)| ((*id).to_owned(), (*name).to_owned())).collect();
    assert_eq!(listed.len(), rows.len(), "a row is there twice");
    let unlisted: Vec<_> = tests.difference(&listed).collect();
    let missing: Vec<_> = listed.difference(&tests).collect();
    assert!(
        unlisted.is_empty() && missing.is_empty(),
        "unlisted {unlisted:#?}, no such {missing:#?}"
    );
    let groups = [
        ("HLD", 1..=18),
        ("LSE", 1..=3),
        ("LSE", 7..=7),
        ("LSE", 10..=11),
        ("MLT", 1..=8),
        ("NON", 1..=4),
        ("RCV", 7..=7),
        ("RCV", 9..=10),
    ];
    for (group, numbers) in groups {
        for id in numbers.map(|number| format!("{group}-{number:03}")) {
            assert!(tests.iter().any(|(found, _)| *found == id), "no test for {id}");
        }
    }
}

/// Goal: the list of acceptance tests is complete, and each of its tests exists. Method: the rows
/// of `acceptance.md` against the tests in the sources, both ways, and both against the ids.
#[test]
fn every_acceptance_id_is_tested_and_listed() {
    let ids = acceptance_ids();
    assert_eq!(ids.len(), 52);
    let mut tests = BTreeSet::new();
    for (file, text) in sources("tests") {
        let mut lines = text.lines().map(str::trim);
        while lines.any(|line| line == "#[test]") {
            let name = lines.find_map(|line| line.strip_prefix("fn ")?.split('(').next());
            let name = name.unwrap_or_else(|| panic!("{file}: an attribute without its test"));
            if acceptance_id(&ids, name).is_some() {
                assert!(tests.insert(name.to_owned()), "{file}: {name} is there twice");
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/acceptance.md")).expect("the list");
    let list = list.split(VENUES).next().expect("the first table");
    let mut listed = BTreeSet::new();
    for (id, name) in listed_tests(list) {
        let prefix = id.to_lowercase().replace('-', "_") + "_";
        assert!(ids.contains(&prefix) && name.starts_with(&prefix), "{id} does not name {name}");
        assert!(listed.insert(name.to_owned()), "{name} is listed twice");
    }
    let unlisted: Vec<_> = tests.difference(&listed).collect();
    let missing: Vec<_> = listed.difference(&tests).collect();
    assert!(
        unlisted.is_empty() && missing.is_empty(),
        "unlisted {unlisted:?}, no such {missing:?}"
    );
    for id in &ids {
        assert!(tests.iter().any(|name| name.starts_with(id.as_str())), "no test for {id}");
    }
}

#[test]
fn the_readme_tells_every_alert() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("a README");
    for alert in ubscore::alert::Alert::ALL {
        let row = format!("| `{}` | {} | ", alert.name(), alert.severity());
        assert!(readme.contains(&row), "the README lacks {row}");
    }
}

#[test]
fn the_readme_tells_every_code_as_the_table_has_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("a README");
    for code in domain::code::Code::ALL {
        let retry = if code.retryable() { "yes" } else { "no" };
        let (name, status) = (code.name(), code.http_status());
        let row = format!("| `{name}` | {status} | {retry} | {}", code.message());
        assert!(readme.contains(&row), "the README lacks {row}");
    }
}

/// The words in backquotes of a text that are paths of the repository, each with the name of an
/// item in it that stands behind in brackets, if one does.
fn named_paths(text: &str) -> Vec<(String, Option<String>)> {
    let parts: Vec<&str> = text.split('`').collect();
    let endings = [".rs", ".md", ".toml", ".sql", ".txt", ".yml"];
    let quoted = parts.iter().enumerate().skip(1).step_by(2);
    let paths = quoted.filter(|(_, word)| {
        let path = word.contains('/') || endings.iter().any(|ending| word.ends_with(ending));
        path && !word.contains(char::is_whitespace)
    });
    let item = |index: usize| {
        let opens = parts.get(index + 1).is_some_and(|between| *between == " (");
        let item = parts.get(index + 2).filter(|_| opens)?;
        let name = item.rsplit("::").next().filter(|name| !name.contains(['/', '.', ' ']))?;
        Some(name.to_owned())
    };
    paths.map(|(index, word)| ((*word).to_owned(), item(index))).collect()
}

/// A reader follows the decisions and the map of the code to these files and functions.
#[test]
fn every_path_that_the_map_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = include_str!("../src/lib.rs").split("//! # Where to find it").nth(1);
    let map = map.and_then(|map| map.split("//! # The crates").next()).expect("the map");
    let map = map.replace("\n//! ", " ").replace("  ", " ");
    let mut wrong = Vec::new();
    for (page, text) in [("decisions", include_str!("../docs/decisions.md")), ("map", &map)] {
        let named = named_paths(text);
        assert!(named.len() > 5, "{page} names {named:?}");
        for (path, item) in named {
            let there = root.join(&path);
            let has = |item: &String| {
                let text = fs::read_to_string(&there).unwrap_or_default();
                text.contains(&format!("fn {item}")) || text.contains(&format!("static {item}"))
            };
            if !there.exists() || !item.as_ref().is_none_or(has) {
                wrong.push(format!("{page}: {path} {item:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let planted = "`src/none.rs` (`f`), `a word`, `lib.rs`, (`g`) `1 / 2`";
    let found = [("src/none.rs", Some("f")), ("lib.rs", None)];
    assert_eq!(
        named_paths(planted),
        found.map(|(path, item)| (path.to_owned(), item.map(str::to_owned)))
    );
}

/// One table of exit codes: the README's is the code's.
#[test]
fn the_readme_lists_every_exit_code() {
    use ubscore::exit::Exit;
    let readme = include_str!("../README.md");
    let chapter = readme.split("### Exit codes\n").nth(1).expect("the chapter");
    let chapter = chapter.split("\n### ").next().expect("its end");
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let code: u8 = cells.next()?.parse().ok()?;
        Some((code, cells.next()? == "yes"))
    };
    let rows: Vec<_> = chapter.lines().filter_map(row).collect();
    let table: Vec<_> = Exit::ALL.iter().map(|exit| (exit.code(), exit.may_restart())).collect();
    assert_eq!(rows, table);
}
