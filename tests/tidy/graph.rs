//! Which file imports which: arrows between rooms that run back, and circles of files.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{self, parts};

/// A crate's modules by path, `[]` for its root, each with its file.
type Modules = BTreeMap<Vec<String>, String>;

/// Each file with those that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The crates with more than one file, by the folder of their sources.
const CRATES: [&str; 8] = source::PRODUCTION;

/// The imports that each room may have: every room of the root package has a row. `commands` is
/// imported by `main` and `service` alone, and `cli` by `commands`.
const ARROWS: &[(&str, &[&str])] = &[
    ("approval", &[]),
    ("pause", &[]),
    ("clock", &[]),
    ("entropy", &[]),
    ("environment", &[]),
    ("exit", &[]),
    ("crash", &[]),
    ("gate", &[]),
    ("release", &[]),
    ("role", &[]),
    ("transaction", &[]),
    ("recharge", &[]),
    ("validation", &["config", "pause", "recharge", "transaction"]),
    // A database's address is parsed by the room that connects to it.
    ("config", &["approval", "format", "postgres"]),
    ("format", &[]),
    ("telemetry", &["format", "release"]),
    ("endpoint", &["config", "release"]),
    ("recharge", &[]),
    ("channels", &["clock", "config", "endpoint", "entropy", "recharge"]),
    ("participant", &["clock", "config", "endpoint", "telemetry"]),
    ("alert", &["clock", "config", "endpoint", "telemetry"]),
    ("last_words", &["alert", "exit", "telemetry"]),
    ("data_dir", &[]),
    ("task", &["exit", "postgres"]),
    (
        "checkpointer",
        &["alert", "clock", "config", "data_dir", "environment", "postgres", "stores", "telemetry"],
    ),
    (
        "postgres",
        &[
            "approval",
            "clock",
            "crash",
            "environment",
            "pause",
            "recharge",
            "telemetry",
            "transaction",
        ],
    ),
    ("adapters", &["alert", "clock", "config", "postgres", "validation"]),
    ("quota", &["clock", "config", "postgres", "telemetry", "validation"]),
    (
        "events",
        &[
            "alert",
            "clock",
            "config",
            "crash",
            "endpoint",
            "entropy",
            "postgres",
            "telemetry",
            "transaction",
        ],
    ),
    (
        "coordinator",
        &[
            "adapters",
            "alert",
            "clock",
            "config",
            "crash",
            "entropy",
            "gate",
            "pause",
            "postgres",
            "quota",
            "recharge",
            "task",
            "telemetry",
            "validation",
        ],
    ),
    (
        "transactions",
        &[
            "adapters",
            "alert",
            "clock",
            "config",
            "coordinator",
            "crash",
            "entropy",
            "gate",
            "participant",
            "postgres",
            "task",
            "telemetry",
            "transaction",
        ],
    ),
    (
        "audit",
        &[
            "adapters",
            "alert",
            "clock",
            "config",
            "gate",
            "postgres",
            "telemetry",
            "transaction",
            "transactions",
        ],
    ),
    (
        "http",
        &[
            "adapters",
            "alert",
            "approval",
            "audit",
            "channels",
            "checkpointer",
            "clock",
            "config",
            "coordinator",
            "crash",
            "entropy",
            "events",
            "pause",
            "postgres",
            "quota",
            "recharge",
            "release",
            "role",
            "telemetry",
            "till",
            "transaction",
            "transactions",
            "validation",
        ],
    ),
    (
        "till",
        &[
            "adapters",
            "alert",
            "channels",
            "clock",
            "config",
            "coordinator",
            "crash",
            "entropy",
            "gate",
            "postgres",
            "recharge",
            "task",
            "telemetry",
        ],
    ),
    ("stream", &["alert", "clock", "config", "http", "telemetry"]),
    ("cli", &["config", "format", "recharge", "release", "role", "transaction"]),
    (
        "stores",
        &[
            "alert",
            "audit",
            "clock",
            "config",
            "data_dir",
            "entropy",
            "last_words",
            "postgres",
            "telemetry",
        ],
    ),
    (
        "commands",
        &[
            "adapters",
            "alert",
            "approval",
            "audit",
            "channels",
            "checkpointer",
            "cli",
            "clock",
            "config",
            "coordinator",
            "crash",
            "data_dir",
            "entropy",
            "environment",
            "events",
            "exit",
            "format",
            "gate",
            "http",
            "last_words",
            "participant",
            "postgres",
            "quota",
            "recharge",
            "release",
            "stores",
            "stream",
            "task",
            "telemetry",
            "till",
            "transactions",
        ],
    ),
    ("service", &["commands", "config", "exit", "http"]),
    ("main", &["cli", "commands"]),
    ("lib", &[]),
];

/// Circles of files that may stay, each with its reason; the first file of a circle names it.
const CIRCLES: &[(&str, &str)] = &[(
    "src/postgres.rs",
    "a log's claims, the pin and their errors; the SQL half is rebuilt next",
)];

/// The room that a file of the root package belongs to.
fn room(file: &str) -> &str {
    let path = file.strip_prefix("src/").expect("a source of the root package");
    path.split(['/', '.']).next().expect("a name")
}

/// The module path of a file below `folder`; a crate's root is `[]`.
fn module(folder: &str, file: &str) -> Vec<String> {
    let path = file.strip_prefix(folder).expect("below the folder").trim_start_matches('/');
    let path = path.strip_suffix(".rs").expect("a Rust source");
    let roots: &[&str] = &["lib", "main"];
    if roots.contains(&path) { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

/// Whether a module is compiled for tests or models only, by the attribute of its declaration.
fn is_for_tests(module: &[String], texts: &BTreeMap<Vec<String>, &str>) -> bool {
    let Some((name, parent)) = module.split_last() else { return false };
    let Some(text) = texts.get(parent) else { return false };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let names = |line: &str| line.trim_start_matches("pub ") == format!("mod {name};");
    let at = lines.iter().position(|line| names(line));
    let attribute = at.and_then(|at| at.checked_sub(1)).map_or("", |before| lines[before]);
    let only = attribute.starts_with("#[cfg(")
        && (attribute.contains("test") || attribute.contains("loom"))
        && !attribute.contains("not(");
    only || is_for_tests(parent, texts)
}

/// The paths that a piece of code begins at `chars[at]`, a group in braces expanded.
fn expand(chars: &[char], mut at: usize) -> (Vec<Vec<String>>, usize) {
    let mut path: Vec<String> = Vec::new();
    loop {
        while chars.get(at).is_some_and(|c| c.is_whitespace()) {
            at += 1;
        }
        if chars.get(at) == Some(&'{') {
            let (mut paths, mut inside) = (Vec::new(), at + 1);
            while chars.get(inside).is_some_and(|c| *c != '}') {
                let (below, end) = expand(chars, inside);
                paths.extend(below.into_iter().map(|below| [path.clone(), below].concat()));
                let rest = chars[end..].iter().position(|c| [',', '}'].contains(c));
                inside = rest.map_or(chars.len(), |length| end + length);
                inside += usize::from(chars.get(inside) == Some(&','));
                while chars.get(inside).is_some_and(|c| c.is_whitespace()) {
                    inside += 1;
                }
            }
            return (paths, inside + 1);
        }
        let name: String =
            chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
        at += name.chars().count();
        if name.is_empty() {
            return (vec![path], at);
        }
        path.push(name);
        if chars.get(at..at + 2) != Some(&[':', ':'][..]) {
            return (vec![path], at);
        }
        at += 2;
    }
}

/// Every path of a code that begins with `crate`, `self`, `super`, or one of its child modules.
fn paths(code: &str) -> Vec<Vec<String>> {
    let chars: Vec<char> = code.chars().collect();
    let children: Vec<&str> = code
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod "))
        .filter_map(|rest| rest.strip_suffix(';'))
        .collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        let begins = (chars[at].is_alphabetic() || chars[at] == '_')
            && !at.checked_sub(1).is_some_and(|before| {
                chars[before].is_alphanumeric() || ['_', ':', '.'].contains(&chars[before])
            });
        if !begins {
            at += 1;
            continue;
        }
        let word: String =
            chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
        let end = at + word.chars().count();
        // `pub(in crate::commands)` bounds a name, and imports nothing.
        let bounds = chars[..at].ends_with(&['p', 'u', 'b', '(', 'i', 'n', ' ']);
        let is_path = chars.get(end..end + 2) == Some(&[':', ':'][..]) && !bounds;
        let known = ["crate", "self", "super"].contains(&word.as_str());
        if is_path && (known || children.contains(&word.as_str())) {
            let (paths, after) = expand(&chars, at);
            let own = (!known).then(|| "self".to_owned());
            found.extend(paths.into_iter().map(|path| own.iter().cloned().chain(path).collect()));
            at = after.max(end);
        } else {
            at = end;
        }
    }
    found
}

/// The file that a path leads to from a module: that of the deepest module on it.
fn target<'a>(modules: &'a Modules, from: &[String], path: &[String]) -> Option<&'a str> {
    let (first, rest) = path.split_first()?;
    let up = 1 + rest.iter().take_while(|name| *name == "super").count();
    let mut at: Vec<String> = match first.as_str() {
        "crate" => Vec::new(),
        "super" => from[..from.len().saturating_sub(up)].to_vec(),
        _ => from.to_vec(),
    };
    for name in rest.iter().skip_while(|name| *name == "super") {
        at.push(name.clone());
        if !modules.contains_key(&at) {
            at.pop();
            break;
        }
    }
    // A name at the crate's root is a crate's front door, not a file's.
    modules.get(&at).filter(|_| !at.is_empty()).map(String::as_str)
}

/// A crate's files without those that only tests and models compile.
pub(super) fn compiled(folder: &str, files: Vec<(String, String)>) -> Vec<(String, String)> {
    let texts: BTreeMap<Vec<String>, &str> =
        files.iter().map(|(file, text)| (module(folder, file), text.as_str())).collect();
    let for_tests: BTreeSet<String> = files
        .iter()
        .filter(|(file, _)| is_for_tests(&module(folder, file), &texts))
        .map(|(file, _)| file.clone())
        .collect();
    files.into_iter().filter(|(file, _)| !for_tests.contains(file)).collect()
}

/// The imports of a crate's files, without those that only tests compile.
fn graph(folder: &str, files: &[(String, String)]) -> Graph {
    let files = compiled(folder, files.to_vec());
    let modules: Modules =
        files.iter().map(|(file, _)| (module(folder, file), file.clone())).collect();
    let imports = |file: &str, text: &str| {
        let from = module(folder, file);
        let paths = paths(&parts(text).code);
        let targets = paths.iter().filter_map(|path| target(&modules, &from, path));
        targets.filter(|target| *target != file).map(str::to_owned).collect()
    };
    files.iter().map(|(file, text)| (file.clone(), imports(file, text))).collect()
}

/// Whether the files are a folder's root module and its direct children: a child is a part of its
/// parent, and the parent lists it.
fn is_one_folder(files: &[String]) -> bool {
    files.iter().any(|root| {
        let folder = format!("{}/", root.trim_end_matches(".rs"));
        let is_child =
            |file: &String| file.strip_prefix(&folder).is_some_and(|below| !below.contains('/'));
        files.iter().all(|file| file == root || is_child(file))
    })
}

/// The circles of a graph, each sorted.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut open, mut reached) = (vec![from], BTreeSet::new());
        while let Some(file) = open.pop() {
            for next in graph.get(file).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|file| (file, reached(file))).collect();
    let mut circles = BTreeSet::new();
    for (file, below) in &reached {
        let back = below.iter().filter(|other| reached[other].contains(*file));
        let circle: Vec<String> = back.cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The circles of files that are more than one folder.
fn tangles(graph: &Graph) -> Vec<Vec<String>> {
    circles(graph).into_iter().filter(|circle| !is_one_folder(circle)).collect()
}

/// The rooms of a list of arrows as a graph.
fn rooms(arrows: &[(&str, &[&str])]) -> Graph {
    let row = |(room, allowed): &(&str, &[&str])| {
        ((*room).to_owned(), allowed.iter().map(|room| (*room).to_owned()).collect())
    };
    arrows.iter().map(row).collect()
}

/// The imports that no arrow allows, and the rooms without arrows.
fn wrong_arrows(graph: &Graph, arrows: &[(&str, &[&str])]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, imports) in graph {
        let Some((_, allowed)) = arrows.iter().find(|(name, _)| *name == room(file)) else {
            wrong.push(format!("{file}: the room stands in no list"));
            continue;
        };
        let others = imports.iter().filter(|other| room(other) != room(file));
        let others = others.filter(|other| !allowed.contains(&room(other)));
        wrong.extend(others.map(|other| format!("{file} imports {other}")));
    }
    wrong
}

#[test]
fn imports_follow_the_arrows() {
    let graph = graph("src", &source::production(&["src"]));
    let wrong = wrong_arrows(&graph, ARROWS);
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (room, allowed) in ARROWS {
        let is_there = |room: &str| graph.keys().any(|file| self::room(file) == room);
        assert!(is_there(room), "no room {room}");
        assert!(allowed.iter().all(|room| is_there(room)), "{room}: {allowed:?}");
        let runs = ["main", "service"].contains(room);
        assert!(!allowed.contains(&"commands") || runs, "{room} imports a command");
    }
}

#[test]
fn the_arrows_lead_in_no_circle() {
    assert_eq!(circles(&rooms(ARROWS)), Vec::<Vec<String>>::new());
    let planted: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])];
    assert_eq!(circles(&rooms(planted)), [["a", "b", "c"]]);
}

#[test]
fn files_import_one_another_in_no_circle() {
    let (mut open, mut known) = (Vec::new(), BTreeSet::new());
    for folder in CRATES {
        for circle in tangles(&graph(folder, &source::production(&[folder]))) {
            let first = circle.first().map_or("", String::as_str);
            match CIRCLES.iter().find(|(file, _)| *file == first) {
                Some((file, _)) => drop(known.insert(*file)),
                None => open.push(circle),
            }
        }
    }
    assert!(open.is_empty(), "{open:#?}");
    assert!(CIRCLES.len() <= 2, "{CIRCLES:?}");
    let gone: Vec<_> = CIRCLES.iter().filter(|(file, _)| !known.contains(file)).collect();
    assert!(gone.is_empty(), "no longer a circle: {gone:?}");
}

/// Texts as files of the root package.
fn planted(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}

/// Goal: an arrow that runs back is found, in each way to write its path.
#[test]
fn an_arrow_that_runs_back_is_found() {
    let arrows: &[(&str, &[&str])] = &[("code", &[]), ("http", &["code"])];
    let code = "pub struct Code;\n";
    let right = planted(&[("src/code.rs", code), ("src/http.rs", "use crate::code::Code;\n")]);
    assert_eq!(wrong_arrows(&graph("src", &right), arrows), Vec::<String>::new());
    for back in [
        "use crate::http::wire;\n",
        "use crate::{\n    http::{wire, api as other},\n};\n",
        "fn f() { crate::http::wire::g(); }\n",
        "use super::http;\n",
    ] {
        let wire = ("src/http/wire.rs", "use crate::code::Code;\n");
        let files = planted(&[("src/code.rs", back), ("src/http.rs", "mod wire;\n"), wire]);
        let wrong = wrong_arrows(&graph("src", &files), arrows);
        assert!(wrong.iter().all(|arrow| arrow.starts_with("src/code.rs imports src/http")));
        assert!(!wrong.is_empty(), "{back}");
    }
    let harmless = "// use crate::http::wire;\nconst A: &str = \"crate::http::wire\";\n";
    let files = planted(&[("src/code.rs", harmless), ("src/http.rs", "")]);
    assert_eq!(wrong_arrows(&graph("src", &files), arrows), Vec::<String>::new());
    let stranger = planted(&[("src/stranger.rs", "")]);
    assert_eq!(wrong_arrows(&graph("src", &stranger), arrows).len(), 1, "a room without arrows");
}

/// Goal: a circle of files is found, also one that runs through a folder's root. A folder of one
/// level, and a module of tests, are none.
#[test]
fn a_circle_is_found() {
    let lib = ("src/lib.rs", "mod a;\nmod b;\nmod c;\n#[cfg(test)]\nmod model;\n");
    let files = planted(&[
        lib,
        ("src/a.rs", "use crate::b::{self, B};\n"),
        ("src/b.rs", "fn f() { super::c::g() }\n"),
        ("src/c.rs", "use crate::a::A;\n"),
        ("src/model.rs", ""),
    ]);
    let circle = ["src/a.rs", "src/b.rs", "src/c.rs"].map(str::to_owned).to_vec();
    assert_eq!(tangles(&graph("src", &files)), [circle]);
    let child = "pub(in crate::a) fn g() {}\nuse super::A;\nuse crate::b::B;\n";
    let files = planted(&[
        lib,
        ("src/a.rs", "mod child;\nuse crate::model::M;\nfn f() { child::g() }\n"),
        ("src/a/child.rs", child),
        ("src/b.rs", "use crate::c::C;\n"),
        ("src/c.rs", "pub(in crate::a) struct C;\n"),
        ("src/model.rs", "use crate::a::A;\n"),
    ]);
    assert_eq!(tangles(&graph("src", &files)), Vec::<Vec<String>>::new());
    // Through the root of a folder, from one of its children to a neighbor.
    let files = planted(&[
        lib,
        ("src/a.rs", "mod child;\nfn f() { child::g() }\n"),
        ("src/a/child.rs", "use crate::b::B;\n"),
        ("src/b.rs", "use crate::a::A;\n"),
        ("src/c.rs", ""),
        ("src/model.rs", ""),
    ]);
    let circle = ["src/a.rs", "src/a/child.rs", "src/b.rs"].map(str::to_owned).to_vec();
    assert_eq!(tangles(&graph("src", &files)), [circle]);
    let files = ["src/a.rs", "src/a/b.rs", "src/a/b/c.rs"].map(str::to_owned);
    assert!(is_one_folder(&files[..2]) && !is_one_folder(&files), "one level");
}
