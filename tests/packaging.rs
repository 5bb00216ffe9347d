//! The files of a release beside the binary: compared with the binary, and with the tools that read
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use clap::{CommandFactory, Parser};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use ubscore::cli::Cli;
use ubscore::commands::roles::signals::OPEN_FILES;
use ubscore::config::Config;
use ubscore::exit::Exit;
use ubscore::release;

use crate::harness::{PATIENCE, Request, Server, Site, cli, patient, refused, said, send, text};

/// The directory of these files.
const PACKAGING: &str = "packaging";
/// The limit of systemd's exposure points, 0 to 100.
const EXPOSURE_MAX: u32 = 12;
/// A secret of HS256.
const SECRET: &str = "a secret of the packaging tests, and of no one else";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn packaged(name: &str) -> String {
    file(&format!("{PACKAGING}/{name}"))
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&packaged(name)).expect("YAML")
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Runs it to its end, which must be a success; returns its output of both channels.
fn assert_content(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = all_of(&output);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

fn all_of(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + text(&output.stderr).as_str()
}

/// One of the programs that `make need-linters` installs.
fn linter(name: &str) -> Command {
    let place = root().join("target/linters/bin").join(name);
    assert!(place.is_file(), "{name} is missing; run: make need-linters");
    let mut command = Command::new(place);
    command.current_dir(root());
    command
}

/// The settings of a unit, or of a drop-in, in order.
fn settings(unit: &str) -> Vec<(String, String)> {
    let of = |line: &str| line.split_once('=').map(|(key, value)| (key.into(), value.into()));
    unit.lines().filter(|line| !line.starts_with(['#', '['])).filter_map(of).collect()
}

/// The one value of a setting.
fn setting(settings: &[(String, String)], key: &str) -> String {
    let found: Vec<_> = settings.iter().filter(|(name, _)| name == key).collect();
    let [(_, value)] = found[..] else { panic!("{key} occurs {} times", found.len()) };
    value.clone()
}

fn unit() -> Vec<(String, String)> {
    settings(&packaged("ubscore.service"))
}

/// The arguments behind the binary's path in ExecStart.
fn start_arguments() -> Vec<String> {
    let line = setting(&unit(), "ExecStart");
    let mut words = line.split(' ').map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some("/usr/local/bin/ubscore"));
    words.collect()
}

/// The packaged configuration in a directory of its own, with its files; returns the file.
fn installed(etc: &Path, data_dir: &Path, url: &str) -> PathBuf {
    let text = packaged("ubscore.toml");
    let text = text.replace("/etc/ubscore", etc.to_str().expect("UTF-8"));
    let text = text.replace("/var/lib/ubscore", data_dir.to_str().expect("UTF-8"));
    let config = etc.join("ubscore.toml");
    fs::write(&config, text).expect("written");
    fs::write(etc.join("auth-secret"), format!("{SECRET}\n")).expect("written");
    fs::write(etc.join("postgres-url"), format!("{url}\n")).expect("written");
    config
}

/// The service as started by the unit, with this configuration, on free ports.
fn service(config: &Path) -> Command {
    let config = config.to_str().expect("UTF-8");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(
        start_arguments().iter().map(|word| word.replace("/etc/ubscore/ubscore.toml", config)),
    );
    command.env("UBSCORE__HTTP__LISTEN", "127.0.0.1:0").env("UBSCORE__OPS__LISTEN", "127.0.0.1:0");
    // As little memory and disk as the harness takes.
    command.env("UBSCORE__WAL__SEGMENT_BYTES", (1 << 20).to_string());
    command.env("UBSCORE__ENGINE__ACCOUNTS_MAX", "10000");
    command.env("UBSCORE__ENGINE__OUTCOMES_MAX", "100000");
    patient(&mut command);
    command
}

/// Asserts that the configuration knows every one of these variables, and takes its value.
fn assert_known(environment: &BTreeMap<String, String>) {
    let etc = directory();
    let config = installed(etc.path(), etc.path(), "postgres://u@h/d");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["token", "--user", "1", "--config"]).arg(config).envs(environment);
    assert_content(&mut command);
    for name in environment.keys() {
        assert!(name.starts_with("UBSCORE__"), "{name}");
    }
}

/// Goal: systemd accepts the unit with every drop-in, and the rights left open are those that
/// ubscore needs. Method: its own checks, with the test binary in place of the installed one.
#[test]
fn systemd_finds_nothing_to_say_about_the_unit() {
    let units = directory();
    let binary = env!("CARGO_BIN_EXE_ubscore");
    let text = packaged("ubscore.service").replace("/usr/local/bin/ubscore", binary);
    let path = units.path().join("ubscore.service");
    fs::write(&path, text).expect("written");
    let drop_ins = units.path().join("ubscore.service.d");
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        assert_content(command.args(arguments).arg(&path))
    };
    for pinned in [false, true] {
        if pinned {
            fs::create_dir(&drop_ins).expect("made");
            fs::write(drop_ins.join("pinned.conf"), packaged("pinned.conf")).expect("written");
        }
        // It prints unknown settings and ignores them. Other units of the machine are not checked.
        let said = analyze(&["verify", "--man=no"]);
        let about: Vec<_> = said.lines().filter(|line| line.contains("ubscore")).collect();
        assert!(about.is_empty(), "{about:#?}");
        analyze(&["security", "--offline=true", &format!("--threshold={EXPOSURE_MAX}")]);
    }
}

/// Goal: `Type=notify` is true. Method: the unit's command, on the packaged configuration, notifies
/// a socket in systemd's place.
#[test]
fn the_unit_starts_a_service_that_says_when_it_is_ready_and_when_it_stops() {
    assert_eq!(setting(&unit(), "Type"), "notify");
    let (site, etc) = (Site::new(), directory());
    let socket = etc.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let notified = || {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).expect("a word");
        String::from_utf8(buffer[..length].to_vec()).expect("text")
    };
    let mut command = service(&installed(etc.path(), &site.data_dir, &site.url()));
    command.env("NOTIFY_SOCKET", &socket);
    let mut server = Server::start(command);
    assert_eq!(notified(), "READY=1\n");
    // ExecReload.
    server.signal(Signal::HUP);
    assert_eq!(server.ready(), 200);
    server.signal(Signal::TERM);
    assert_eq!(notified(), "STOPPING=1\n");
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    for line in said.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

/// A missing or broken service manager does not stop the service.
#[test]
fn a_service_manager_that_does_not_listen_stops_nothing() {
    let (site, etc) = (Site::new(), directory());
    let mut command = service(&installed(etc.path(), &site.data_dir, &site.url()));
    command.env("NOTIFY_SOCKET", etc.path().join("nobody"));
    let server = Server::start(command);
    assert_eq!(server.ready(), 200);
    server.says("the service manager cannot be notified");
    server.stop();
}

/// Goal: lasting failures are left to a person, and passing ones are retried. Method: the exit
/// codes of the real binary against the unit.
#[test]
fn the_unit_restarts_what_may_be_restarted() {
    let unit = unit();
    assert_eq!(setting(&unit, "Restart"), "on-failure");
    let prevent = setting(&unit, "RestartPreventExitStatus");
    let prevent: BTreeSet<&str> = prevent.split(' ').collect();
    let never = [Exit::Arguments, Exit::Damage].map(|exit| exit.code().to_string());
    assert_eq!(prevent, BTreeSet::from([&*never[0], &never[1], "SIGABRT"]));
    for exit in Exit::ALL.into_iter().filter(|exit| exit.may_restart()) {
        assert!(!prevent.contains(&*exit.code().to_string()), "{exit:?}");
    }

    let (etc, data_dir) = (directory(), directory());
    let config = installed(etc.path(), data_dir.path(), "postgres://u@127.0.0.1:1/d");
    let (away, said) = refused(service(&config));
    assert_eq!(away, 1, "{said}");
    assert!(!prevent.contains(&*away.to_string()));
    fs::remove_file(etc.path().join("auth-secret")).expect("there");
    let (wrong, said) = refused(service(&config));
    assert!(prevent.contains(&*wrong.to_string()), "{wrong}: {said}");
}

/// Each number of the unit that has a twin in the code or in another file.
#[test]
fn the_unit_agrees_with_the_binary_and_its_configuration() {
    let unit = unit();
    let defaults = Config::default();
    let seconds: u64 = setting(&unit, "TimeoutStopSec").parse().expect("seconds");
    assert!(seconds * 1000 >= defaults.http.shutdown_timeout_ms + 10_000, "{seconds}");
    assert_eq!(setting(&unit, "LimitNOFILE"), OPEN_FILES.to_string());

    let state = format!("/var/lib/{}", setting(&unit, "StateDirectory"));
    let configuration: toml::Table = packaged("ubscore.toml").parse().expect("TOML");
    assert_eq!(configuration["data_dir"].as_str(), Some(&*state));
    assert_eq!(setting(&unit, "WorkingDirectory"), state);
    let user = setting(&unit, "User");
    assert_eq!(setting(&unit, "Group"), user);
    let users = packaged("sysusers.d/ubscore.conf");
    assert!(users.contains(&format!("\nu {user} - ")) && users.contains(&state), "{users}");
    let files = packaged("tmpfiles.d/ubscore.conf");
    for line in [
        format!("d /etc/ubscore 0750 root {user} -"),
        format!("d {state} {} {user} {user} -", setting(&unit, "StateDirectoryMode")),
    ] {
        assert!(files.lines().any(|found| found == line), "{line} is missing in\n{files}");
    }
    for table in ["auth", "postgres"] {
        for value in configuration[table].as_table().expect("a table").values() {
            assert!(value.as_str().expect("text").starts_with("/etc/ubscore/"), "{value}");
        }
    }
}

#[test]
fn the_pinned_core_is_one_that_the_process_may_use() {
    let settings = settings(&packaged("pinned.conf"));
    let pairs = settings.iter().filter(|(key, _)| key == "Environment");
    let environment: BTreeMap<String, String> = pairs
        .map(|(_, pair)| pair.split_once('=').expect("a pair"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_known(&environment);
    let core: u32 = environment["UBSCORE__ENGINE__CORE"].parse().expect("a number");
    let affinity = setting(&settings, "CPUAffinity");
    let (first, last) = affinity.split_once('-').expect("a range");
    let allowed = first.parse::<u32>().expect("a CPU")..=last.parse().expect("a CPU");
    assert!(allowed.contains(&core), "{core} is not in {affinity}");
}

#[test]
fn linters_find_nothing_to_say_about_the_container_files() {
    let said = assert_content(linter("hadolint").arg("packaging/Dockerfile"));
    assert_eq!(said, "");
    let schema = ["--builtin-schema", "vendor.compose-spec", "packaging/compose.yaml"];
    assert_content(linter("check-jsonschema").args(schema));
}

/// The instructions of the Dockerfile's last stage, with continued lines joined.
fn instructions() -> Vec<(String, String)> {
    let joined = packaged("Dockerfile").replace("\\\n", " ");
    let last = joined.rsplit("\nFROM ").next().expect("a stage").to_owned();
    let lines = last.lines().skip(1).filter(|line| !line.starts_with('#'));
    let of = |line: &str| line.split_once(' ').map(|(name, rest)| (name.into(), rest.into()));
    lines.filter_map(of).collect()
}

fn instruction(name: &str) -> String {
    let found = instructions();
    let found = found.iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("no {name}")).1.trim().to_owned()
}

fn words(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

#[test]
fn the_image_runs_what_the_command_line_knows() {
    let entry = words(&instruction("ENTRYPOINT"));
    let command = words(&instruction("CMD"));
    assert_eq!(command, start_arguments(), "the unit starts the same");
    Cli::try_parse_from(entry.iter().chain(&command)).expect("arguments");
    assert!(entry[0].ends_with("/ubscore"));
    assert_eq!(instruction("STOPSIGNAL"), setting(&unit(), "KillSignal"));
    assert_eq!(instruction("VOLUME"), setting(&unit(), "WorkingDirectory"));
    let user = instruction("USER");
    let [uid, gid] = [0, 1].map(|part| user.split(':').nth(part).expect("a part").to_owned());
    let made = instruction("RUN");
    assert!(uid.parse::<u32>().is_ok_and(|uid| uid > 0), "{user}");
    assert!(made.contains(&format!("--gid {gid} ")) && made.contains(&format!("--uid {uid} ")));
    let toolchain = "FROM rust:1.95.0-slim-bookworm AS build\n";
    assert!(packaged("Dockerfile").contains(toolchain), "the manifest's rust-version");
    assert!(file("Cargo.toml").contains("rust-version = \"1.95\""));
}

/// Goal: a container that answers is healthy, and one that does not is not. Method: the image's own
/// command, in bash, with a server's port and a port without a listener.
#[test]
fn the_image_knows_whether_it_lives() {
    let check = instruction("HEALTHCHECK");
    let (_, command) = check.split_once("CMD ").expect("a command");
    let words = words(command);
    let healthy = |port: u16| {
        let port = format!("/{port} ");
        let arguments = words[1..].iter().map(|word| word.replace("/9090 ", &port));
        let mut command = Command::new(&words[0]);
        command.args(arguments).output().expect("bash").status.success()
    };
    let site = Site::new();
    let server = site.start();
    assert!(command.contains("/9090 "));
    assert!(healthy(server.ops.port()));
    // It answers this one with 404.
    let wrong = send(server.http, &Request::new("", "GET", "/healthz")).expect("an answer");
    assert_eq!(wrong.status, 404);
    assert!(!healthy(server.http.port()));
    let port = server.ops.port();
    server.stop();
    assert!(!healthy(port));
}

/// Goal: a build inside the image has its files, and no others come in. Method: the files that
/// `.dockerignore` admits, copied elsewhere, are a package to cargo, with every target.
#[test]
fn the_build_context_is_whole_and_small() {
    let (admitted, context) = (file(".dockerignore"), directory());
    assert!(admitted.lines().any(|line| line == "*"), "everything is shut out first");
    for name in admitted.lines().filter_map(|line| line.strip_prefix('!')) {
        let (from, to) = (root().join(name), context.path().join(name));
        fs::create_dir_all(to.parent().expect("a parent")).expect("made");
        assert_content(Command::new("cp").arg("-r").arg(from).arg(&to));
    }
    for (instruction, rest) in instructions() {
        let copied = rest.split_once(' ').map(|(from, _)| from);
        if let (true, Some(from)) = (instruction == "COPY" && !rest.starts_with("--"), copied) {
            assert!(context.path().join(from).is_file(), "{from} is shut out");
        }
    }
    let metadata = |place: &Path| -> BTreeSet<String> {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version=1", "--no-deps", "--locked", "--offline"]);
        let output = command.current_dir(place).output().expect("cargo");
        assert!(output.status.success(), "{}", all_of(&output));
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let packages = metadata["packages"].as_array().expect("packages");
        let targets = packages.iter().flat_map(|of| of["targets"].as_array().expect("targets"));
        // Cargo finds examples by their files, so a missing one is not noticed.
        let built = targets.filter(|target| target["kind"][0] != "example");
        built.map(|target| format!("{} {}", target["name"], target["kind"])).collect()
    };
    assert_eq!(metadata(context.path()), metadata(root()));
    for secret in ["packaging/secrets", "data", ".git", "target"] {
        assert!(!context.path().join(secret).exists(), "{secret} comes in");
    }
}

/// Goal: compose starts the image's own service with known settings. Method: each fact of the file
/// against its twin.
#[test]
fn compose_agrees_with_the_image_and_the_configuration() {
    let compose = yaml("compose.yaml");
    let service = &compose["services"]["ubscore"];
    assert_eq!(text(&service["image"]), format!("ubscore:{}", release::VERSION));

    let mounted = "/run/secrets/";
    let place = directory();
    let mut environment = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (name, value) in service["environment"].as_object().expect("a map") {
        let mut value = text(value).to_owned();
        if let Some(secret) = value.strip_prefix(mounted) {
            used.insert(secret.to_owned());
            let path = place.path().join(secret);
            let url = "postgres://u@h/d";
            fs::write(&path, if secret.ends_with("-url") { url } else { SECRET }).expect("written");
            value = path.to_str().expect("UTF-8").to_owned();
        }
        environment.insert(name.clone(), value);
    }
    let image = instruction("ENV");
    let (name, listen) = image.split_once('=').expect("a pair");
    environment.insert(name.to_owned(), listen.to_owned());
    assert_known(&environment);
    let list = |value: &Value| -> BTreeSet<String> {
        value.as_array().expect("a list").iter().map(|one| text(one).to_owned()).collect()
    };
    assert_eq!(list(&service["secrets"]), used);

    // Published to loopback alone; the image's text places the listeners there.
    let exposed: BTreeSet<&str> = environment
        .iter()
        .filter_map(|(name, value)| name.ends_with("__LISTEN").then_some(value))
        .map(|listen| listen.strip_prefix("0.0.0.0:").expect("every address of the container"))
        .collect();
    let published = exposed.iter().map(|port| format!("127.0.0.1:{port}:{port}"));
    assert_eq!(list(&service["ports"]), published.collect());
    assert_eq!(instruction("EXPOSE").split(' ').collect::<BTreeSet<_>>(), exposed);
    assert!(compose["services"]["postgres"].get("ports").is_none());

    assert_eq!(text(&service["volumes"][0]), format!("log:{}", instruction("VOLUME")));
    let unit = unit();
    assert_eq!(service["ulimits"]["nofile"].to_string(), setting(&unit, "LimitNOFILE"));
    let stop = format!("{}s", setting(&unit, "TimeoutStopSec"));
    assert_eq!(text(&service["stop_grace_period"]), stop);

    let postgres = &compose["services"]["postgres"];
    let major = text(&postgres["image"]).strip_prefix("postgres:").expect("an image");
    let major = major.split('.').next().expect("a number");
    assert!(instruction("RUN").contains(&format!("postgresql-client-{major} ")));
    let arguments = list(&postgres["command"]);
    for on in ["fsync=on", "full_page_writes=on", "synchronous_commit=on"] {
        assert!(arguments.contains(on), "{on}");
    }
}

/// No secret has a value in the files: each is a file that git ignores.
#[test]
fn secrets_are_files_that_are_not_here() {
    let compose = yaml("compose.yaml");
    for (name, secret) in compose["secrets"].as_object().expect("a map") {
        assert_eq!(text(&secret["file"]), format!("./secrets/{name}"));
    }
    assert!(file(".gitignore").lines().any(|line| line == "/packaging/secrets"));
    for service in compose["services"].as_object().expect("a map").values() {
        for (name, value) in service["environment"].as_object().expect("a map") {
            let secret = ["PASSWORD", "SECRET", "URL"].iter().any(|word| name.contains(word));
            assert!(!secret || text(value).starts_with("/run/secrets/"), "{name}");
        }
    }
}

/// Words that bash offers behind `line`.
fn completed(line: &str) -> BTreeSet<String> {
    let script = cli(&["completions", "bash"]);
    let (code, script, stderr) = said(&script);
    assert_eq!((code, &*stderr), (0, ""));
    let place = directory();
    let path = place.path().join("ubscore");
    fs::write(&path, script).expect("written");
    // As readline would: the words, the index of the typed one, and the function registered for the
    // command.
    let program = r#"
        source "$1"
        read -ra COMP_WORDS <<< "$2"
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        COMP_LINE=$2 COMP_POINT=${#2}
        function=$(complete -p ubscore | sed 's/.*-F \([^ ]*\).*/\1/')
        $function ubscore "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", program, "bash"]).arg(&path).arg(line);
    assert_content(&mut bash).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let one = |word: &str| BTreeSet::from([word.to_owned()]);
    assert_eq!(completed("ubscore wa"), one("wal"));
    assert_eq!(completed("ubscore wal ver"), one("verify"));
    assert_eq!(completed("ubscore serve --conf"), one("--config"));
    assert_eq!(completed("ubscore token --role v"), one("viewer"));
    assert_eq!(completed("ubscore completions zs"), one("zsh"));
}

#[test]
fn every_shell_has_a_script() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (code, script, _) = said(&cli(&["completions", shell]));
        assert_eq!(code, 0, "{shell}");
        assert!(script.contains("ubscore") && script.contains("wal"), "{shell}");
    }
}

/// The names of all pages: `ubscore`, `ubscore-wal`, `ubscore-wal-dump`, and so on.
fn pages(command: &clap::Command, name: &str) -> BTreeSet<String> {
    let below = |sub: &clap::Command| pages(sub, &format!("{name}-{}", sub.get_name()));
    let mut names: BTreeSet<String> = command.get_subcommands().flat_map(below).collect();
    names.insert(name.to_owned());
    names
}

/// Goal: there is a page for each command, with the content of `--help`, and troff reads it without
/// a warning. Method: the definition of the command line against the files, and groff with all its
/// warnings.
#[test]
fn every_command_has_a_manual_page() {
    let place = directory();
    let to = place.path().join("man1");
    assert_eq!(said(&cli(&["man", to.to_str().expect("UTF-8")])).0, 0);
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        name.strip_suffix(".1").expect("section 1").to_owned()
    };
    let written: BTreeSet<String> = fs::read_dir(&to).expect("made").map(name).collect();
    assert_eq!(written, pages(&Cli::command(), "ubscore"));
    let mut groff = Command::new("groff");
    groff.args(["-man", "-ww", "-z", "-Kutf8"]);
    groff.args(written.iter().map(|page| to.join(format!("{page}.1"))));
    assert_eq!(assert_content(&mut groff), "");

    let (code, page, _) = said(&cli(&["man"]));
    assert_eq!((code, page), (0, fs::read_to_string(to.join("ubscore.1")).expect("a page")));
    let mut groff = Command::new("groff");
    let read = assert_content(groff.args(["-man", "-Tascii", "-P-cbou"]).arg(to.join("ubscore.1")));
    for command in Cli::command().get_subcommands() {
        let named = format!("ubscore-{}(1)", command.get_name());
        assert!(read.contains(&named), "{named} is not in\n{read}");
    }
}

#[test]
fn the_version_names_the_commit_wherever_it_is_printed() {
    let (code, printed, _) = said(&cli(&["--version"]));
    let (version, commit) = (release::VERSION, release::COMMIT);
    assert_eq!((code, &*printed), (0, &*format!("ubscore {version} ({commit})\n")));
    let site = Site::new();
    let server = site.start();
    let series = format!("ubscore_build_info{{version=\"{version}\",commit=\"{commit}\"}} 1");
    assert!(server.metrics().lines().any(|line| line == series), "{series}");
}

/// Goal: a binary names only the commit that it is made of. Method: the build script, compiled, in
/// a directory that is a repository, has changes, lies in another one's, or is none; and with a
/// given commit.
#[test]
fn a_build_knows_its_commit_or_says_that_it_does_not() {
    let place = directory();
    let script = place.path().join("script");
    let mut rustc = Command::new("rustc");
    assert_content(
        rustc.args(["--edition=2024", "build.rs", "-o"]).arg(&script).current_dir(root()),
    );
    let package = place.path().join("package");
    fs::create_dir_all(package.join("src")).expect("made");
    fs::write(package.join("src/lib.rs"), "").expect("written");
    let built_from = |root: &Path, given: &str| {
        let mut command = Command::new(&script);
        command.env("CARGO_MANIFEST_DIR", root).env("UBSCORE_COMMIT", given);
        command.env("PROFILE", "release");
        command.env("GIT_CEILING_DIRECTORIES", place.path().parent().expect("a parent"));
        let said = assert_content(&mut command);
        let line = said.lines().find_map(|line| line.strip_prefix("cargo::rustc-env="));
        line.and_then(|pair| pair.strip_prefix("UBSCORE_BUILT_FROM=")).expect("a commit").to_owned()
    };
    assert_eq!(built_from(&package, ""), "unknown");
    assert_eq!(built_from(&package, "0123456789ab"), "0123456789ab");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@t"]).args(arguments);
        assert_content(command.current_dir(&package)).trim().to_owned()
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--no-verify", "--message=one"]);
    let hash = git(&["rev-parse", "--short=12", "HEAD"]);
    assert_eq!(built_from(&package, ""), hash);
    assert_eq!(built_from(&package, "0123456789ab"), "0123456789ab", "a given commit wins");
    // Files outside the binary do not change its commit.
    fs::write(package.join("notes"), "x").expect("written");
    assert_eq!(built_from(&package, ""), hash);
    fs::write(package.join("src/lib.rs"), "//!").expect("written");
    assert_eq!(built_from(&package, ""), format!("{hash}-dirty"));
    let mut debug = Command::new(&script);
    debug.env("CARGO_MANIFEST_DIR", &package).env("UBSCORE_COMMIT", "").env("PROFILE", "debug");
    assert!(assert_content(&mut debug).contains("=development\n"), "no commit compiles it again");
    let inner = package.join("vendored");
    fs::create_dir(&inner).expect("made");
    assert_eq!(built_from(&inner, ""), "unknown", "this is another package's repository");
}

/// Every migration is in a release of the changelog, and this one is the newest.
#[test]
fn the_changelog_tells_of_this_version_and_its_schema() {
    let changelog = file("CHANGELOG.md");
    let newest = changelog.lines().find(|line| line.starts_with("## [")).expect("a release");
    assert!(newest.starts_with(&format!("## [{}]", release::VERSION)), "{newest}");
    let migrations = fs::read_dir(root().join("config/migrations")).expect("migrations");
    let number = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        name.strip_prefix('V')?.split("__").next()?.parse::<u32>().ok()
    };
    let schema = migrations.filter_map(number).max().expect("some");
    let schemas = if schema == 1 { "V1".to_owned() } else { format!("V1 to V{schema}") };
    assert!(changelog.contains(&format!("Its schema is {schemas},")), "V{schema} is missing");
}

/// The names on the installation page exist: files of the repository, targets of `make`, commands
/// of the binary.
#[test]
fn the_installation_is_described_in_words_that_exist() {
    let page = file("docs/install.md");
    let makefile = file("Makefile");
    let mut commands = 0;
    for line in page.lines() {
        for name in line.split(['`', ' ', '=']).filter(|name| name.starts_with("packaging/")) {
            let name = name.trim_end_matches(['.', ',', ':', ';', ')']);
            let known = name.starts_with("packaging/secrets") || root().join(name).exists();
            assert!(known, "{name}: {line}");
        }
        if let Some(targets) = line.trim().strip_prefix("make ") {
            let target = targets.split(' ').next().expect("a target");
            assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
        }
        let Some(typed) = line.strip_prefix("    ") else { continue };
        let typed = typed.strip_prefix("sudo -u ubscore ").unwrap_or(typed);
        if typed.starts_with("ubscore ") {
            let words = typed.split(" > ").next().expect("words").split_whitespace();
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            commands += 1;
        }
    }
    assert!(commands >= 5, "{commands}");
}
