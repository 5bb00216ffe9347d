# Targets for a clone. Each one names its changes outside the clone before it makes them.
#
#   make run     build, and serve on 127.0.0.1 with everything it needs and simulated payment channels; ARGS="..." goes to `serve`;
#                CHAIN=1: also a test chain, installed below target, and a node with a signer on it
#   make test    all tests, with crash points and a real PostgreSQL
#   make soak    hours, if you like: ROUNDS=200 kills under load, as many power cuts twice, PostgreSQL away for minutes,
#                every fault of the disk, a death at every point under every answer, SEEDS=20000 simulated runs;
#                FAMILY=growth alone: the best rate for MINUTES=60, with a table of what grows;
#                FAMILY=takeovers alone: 1,000 take-overs; FAMILY=reads alone: 24,000 reads by 1,000 clients;
#                FAMILY=trades alone: ROUNDS=200 kills under a book's load, as many of a book with its server inside, as many
#                power cuts; CONNECTIONS=10000 broken ones beside a venue
#                FAMILY=transactions alone: ROUNDS=200 kills under a crowd of transactions and a venue, PostgreSQL struck in most
#                FAMILY=recharges alone: chaos of payment channels, server and PostgreSQL for MINUTES=60; 10,000 broken
#                callbacks, CONNECTIONS=10000 broken connections
#                FAMILY=txm alone: chaos of three nodes of the transaction manager, their ways and a chain for MINUTES=60
#   make mutants change one decision at a time and see that a unit test fails; needs cargo-mutants
#   make bench   the benches
#   make instructions  counts what orders, lookups, records and commands of venues take, by callgrind; installs valgrind and gungraun-runner
#   make fuzz    fuzzes each parser of foreign bytes for SECONDS=60; installs cargo-fuzz, needs nightly
#   make loom    every interleaving of our own lock-free lines, by a model checker
#   make otel    the tests of traces, with the feature that default builds lack
#   make sanitize  the `unsafe` code under the address sanitizer; needs nightly
#   make lint    formatting, clippy and documentation, warnings are errors
#   make deny    licences, bans and sources of all dependencies; installs cargo-deny below target
#   make sbom    the components of the release binary, as CycloneDX; installs cargo-cyclonedx below target
#   make dist    the release: binary, unit, manual pages and the rest in one archive, with its checksum
#   make reset   stop the embedded PostgreSQL and remove ./data, with all accounts and transfers

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
ARGS ?=
ROUNDS ?= 200
SEEDS ?= 20000
CONNECTIONS ?= 10000
MINUTES ?= 60
SECONDS ?= 60
FAMILY ?= faults
CHAIN ?=
DATA_DIR := data
SCHEMATHESIS := target/schemathesis
AXE := target/axe
ANVIL := target/anvil
NODEJS := target/nodejs
SBE := target/sbe
LINTERS := target/linters
DIST_BUILD := target/dist-build
TOOLS := target/tools
CARGO_CYCLONEDX_VERSION := 0.5.9

.PHONY: run test soak mutants bench instructions fuzz loom otel sanitize lint deny sbom dist reset need-rust need-curl need-nightly \
  need-openssl need-postgres need-promtool need-schemathesis need-sbe need-chromium need-axe need-anvil need-linters need-packaging

run: need-rust need-postgres $(if $(CHAIN),need-anvil)
	@echo "building ubscore (release); the first build takes minutes"
	$(CARGO) build --release --locked
	exec ./target/release/ubscore serve --dev --channel-sim $(if $(CHAIN),--chain) $(ARGS)

# The tests wait for processes and disks more than they compute.
test: need-rust need-postgres need-curl need-openssl need-promtool need-schemathesis need-sbe need-chromium need-axe need-anvil need-linters \
    need-packaging
	SCHEMATHESIS=$$PWD/$(SCHEMATHESIS)/bin/st RUST_TEST_THREADS=4 $(CARGO) test --workspace --features crash --locked

# Its output is one run's record: date, machine and commit come first.
soak: need-rust need-postgres $(if $(filter txm,$(FAMILY)),need-anvil)
	echo "date         $$(date --utc +%FT%TZ)"
	echo "CPU          $$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $$(nproc) cores"
	echo "commit       $$(git describe --always --dirty)"
	case "$(FAMILY)" in
	  faults) tests=(soak:: a_busy_service_is_never_called_wrong a_power_cut_takes_back_nothing_that_was_answered
	    a_postgresql_that_is_away_for_long disk:: answers:: simulation::)
	    export UBSCORE_SOAK_ROUNDS=$(ROUNDS) UBSCORE_SIM_SEEDS=$(SEEDS) ;;
	  growth) tests=(growth::); export UBSCORE_SOAK_MINUTES=$(MINUTES) ;;
	  takeovers | reads) tests=("$(FAMILY)::"); export UBSCORE_SOAK_ROUNDS=$(ROUNDS) ;;
	  trades) tests=(trading:: stream::sessions::a_thousand_broken_connections_stop_no_other_venue)
	    export UBSCORE_SOAK_ROUNDS=$(ROUNDS) UBSCORE_SOAK_CONNECTIONS=$(CONNECTIONS)
	    $(CARGO) build --profile soak --features crash --locked --example book ;;
	  transactions) tests=(payments:: rcv_006_no_round); export UBSCORE_SOAK_ROUNDS=$(ROUNDS) ;;
	  recharges) tests=(recharge_soak:: rch_040)
	    export UBSCORE_SOAK_MINUTES=$(MINUTES) UBSCORE_SOAK_CONNECTIONS=$(CONNECTIONS) ;;
	  txm) tests=(txm_real::soak); export UBSCORE_SOAK_MINUTES=$(MINUTES) ;;
	  *) echo "no family $(FAMILY): faults, growth, takeovers, reads, trades, transactions, recharges or txm" >&2; exit 1 ;;
	esac
	RUST_TEST_THREADS=1 $(CARGO) test --profile soak --features crash --locked --test main -- --nocapture "$${tests[@]}"
	if [ "$(FAMILY)" = faults ]; then
	  $(CARGO) test --profile soak -p txm --locked --test simulation -- --nocapture
	fi

# The unit tests are the judges: each mutant is one more build. The survivors are listed in target/mutants*/mutants.out.
mutants: need-rust
	@$(CARGO) mutants --version >/dev/null 2>&1 || {
	  echo "cargo mutants is missing; run: cargo install cargo-mutants --locked" >&2
	  exit 1
	}
	mkdir -p target/mutants-{chain,domain,engine,ubscore,wal}
	$(CARGO) mutants --package ubscore --output target/mutants-ubscore --cargo-arg=--locked --cargo-arg=--lib \
	  -- -- coordinator::step
	$(CARGO) mutants --package domain --output target/mutants-domain --cargo-arg=--locked -- -- transfer::
	$(CARGO) mutants --package chain --output target/mutants-chain --cargo-arg=--locked
	$(CARGO) mutants --package engine --output target/mutants-engine --cargo-arg=--locked -- -- op:: builder::
	$(CARGO) mutants --package wal --output target/mutants-wal --cargo-arg=--locked

bench: need-rust need-postgres
	$(CARGO) bench --locked

# The runner must be of the library's version.
instructions: need-rust
	@$(INSTALL)
	command -v valgrind >/dev/null || install valgrind libc6-dbg
	version=$$($(CARGO) metadata --locked --format-version 1 | grep -o '"name":"gungraun","version":"[^"]*"' | cut -d'"' -f8)
	export GUNGRAUN_RUNNER=$$PWD/target/gungraun/$$version/bin/gungraun-runner
	[[ -x $$GUNGRAUN_RUNNER ]] ||
	  $(CARGO) install --locked --version "$$version" --root "target/gungraun/$$version" gungraun-runner
	$(CARGO) bench --locked --features instructions --bench instructions

# New inputs are kept in fuzz/target/found, failing ones in fuzz/artifacts.
fuzz: need-rust need-nightly
	@command -v cargo-fuzz >/dev/null || { echo "installing cargo-fuzz"; $(CARGO) install cargo-fuzz --locked; }
	for target in $$(ls fuzz/corpus); do
	  mkdir -p fuzz/target/found/$$target
	  $(CARGO) +nightly fuzz run --release $$target fuzz/target/found/$$target fuzz/corpus/$$target -- \
	    -max_total_time=$(SECONDS) -print_final_stats=1
	done

loom: need-rust
	RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir target/loom -p bell -p wal --lib loom_

otel: need-rust need-postgres need-promtool
	RUST_TEST_THREADS=4 $(CARGO) test --features otel --locked --test main -- watch::
	$(CARGO) test --features otel --locked --lib -- telemetry:: config::

# Doctests are left out: the sanitizer's runtime does not reach them.
sanitize: need-rust need-nightly
	RUSTFLAGS="-Zsanitizer=address" $(CARGO) +nightly test --locked --target x86_64-unknown-linux-gnu --target-dir target/sanitize \
	  -p wal --lib --tests

lint: need-rust
	@for component in fmt clippy; do
	  $(CARGO) $$component --version >/dev/null 2>&1 || {
	    echo "cargo $$component is missing; run: rustup component add rustfmt clippy" >&2
	    exit 1
	  }
	done
	set -x
	$(CARGO) fmt --all --check
	# Every line that any feature compiles; then the default build, with the code for absent features.
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings
	$(CARGO) clippy --workspace --locked -- -D warnings
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --no-deps --locked

# The system's cargo-deny is as good as ours.
deny: need-rust need-linters
	@export PATH="$$PATH:$$PWD/$(LINTERS)/bin"
	set -x
	$(CARGO) deny --locked check --hide-inclusion-graph bans licenses sources

# The components are the dependencies that cargo resolves for this target, without those of builds and tests. They are read from cargo
# and not from the finished binary (cargo auditable), so that the release's bytes stay those of `cargo build`.
sbom: need-rust need-linters
	@export PATH="$$PATH:$$PWD/$(TOOLS)/bin"
	$(CARGO) cyclonedx --version >/dev/null 2>&1 || {
	  echo "cargo-cyclonedx is missing; building it below $(TOOLS), which takes minutes"
	  $(CARGO) install --debug --locked --version $(CARGO_CYCLONEDX_VERSION) --root $(TOOLS) cargo-cyclonedx
	}
	target=$$(rustc -vV | sed -n 's/^host: //p')
	$(CARGO) cyclonedx --format json --spec-version 1.5 --target "$$target" --no-build-deps \
	  --override-filename ubscore.cdx --quiet
	mkdir -p target/sbom
	# The build directory is private.
	sed "s|file://$$PWD|file:///ubscore|g" ubscore.cdx.json > target/sbom/ubscore.cdx.json
	rm -f {.,bell,chain,domain,engine,stream,txm,wal}/ubscore.cdx.json
	$(CARGO) tree --locked --edges normal --no-dedupe --prefix none --target "$$target" --format '{p}' |
	  $(LINTERS)/bin/python packaging/sbom_check.py target/sbom/ubscore.cdx.json

# Built apart, with the build machine's paths replaced: they mean nothing elsewhere, and two builds of one commit are then alike. The
# symbols lie beside the stripped binary, which names their file: backtraces and debuggers find them there.
dist: need-rust sbom
	@home=$${CARGO_HOME:-$$HOME/.cargo}
	sysroot=$$(rustc --print sysroot)
	maps=("$$home/registry/src=/cargo" "$$sysroot/lib/rustlib/src/rust=/rust" "$$PWD=/ubscore")
	flags=$$(printf -- '--remap-path-prefix=%s\x1f' "$${maps[@]}")
	c_flags=$$(printf -- '-ffile-prefix-map=%s ' "$${maps[@]}")
	CARGO_ENCODED_RUSTFLAGS="$${flags%$$'\x1f'}" CFLAGS="$${CFLAGS:-} $$c_flags" \
	  $(CARGO) build --profile shipped --locked --target-dir $(DIST_BUILD)
	version=$$($(CARGO) metadata --locked --no-deps --format-version 1 | grep -o '"name":"ubscore","version":"[^"]*"' | cut -d'"' -f8)
	name=ubscore-$$version-$$(rustc -vV | sed -n 's/^host: //p')
	place=target/dist/$$name
	rm -rf -- target/dist && mkdir -p "$$place"/{bin,completions,config,docs,packaging}
	built=$(DIST_BUILD)/shipped/ubscore
	objcopy --only-keep-debug --compress-debug-sections "$$built" "$$place/bin/ubscore.debug"
	strip --strip-all -o "$$place/bin/ubscore" "$$built"
	objcopy --add-gnu-debuglink="$$place/bin/ubscore.debug" "$$place/bin/ubscore"
	chmod -x "$$place/bin/ubscore.debug"
	if grep --quiet --fixed-strings --text -e "$$home/" -e "$$PWD/" "$$place/bin/ubscore"; then
	  echo "warning: the binary names directories of this machine" >&2
	fi
	ls -l "$$place/bin"
	"$$place/bin/ubscore" man "$$place/man1"
	for shell in bash zsh fish; do "$$place/bin/ubscore" completions $$shell > "$$place/completions/ubscore.$$shell"; done
	cp -r packaging/{ubscore.service,pinned.conf,ubscore.toml,sysusers.d,tmpfiles.d} "$$place/packaging/"
	cp config/{ubscore.toml,alerts.yml,grafana.json} "$$place/config/"
	cp docs/*.md "$$place/docs/"
	cp LICENSE README.md CHANGELOG.md target/sbom/ubscore.cdx.json "$$place/"
	# The same files give the same bytes, for any user and at any time.
	time=$$(git log -1 --format=%ct 2>/dev/null || echo 0)
	tar --create --sort=name --mtime="@$$time" --owner=0 --group=0 --numeric-owner --directory target/dist "$$name" |
	  gzip --no-name > "target/dist/$$name.tar.gz"
	cd target/dist
	sha256sum "$$name.tar.gz" > "$$name.tar.gz.sha256"
	sha256sum --check "$$name.tar.gz.sha256"

reset:
	@for process in /proc/[0-9]*; do
	  [[ "$$(readlink $$process/exe || true)" == "$$PWD"/target/*/ubscore* ]] || continue
	  [[ "$$(readlink $$process/cwd || true)" == "$$PWD" ]] || continue
	  echo "ubscore runs as process $${process#/proc/}; stop it first" >&2
	  exit 1
	done
	pid_file=$(DATA_DIR)/postgres/postmaster.pid
	pid=$$(sed -n 1p $$pid_file 2>/dev/null || true)
	socket_directory=$$(sed -n 5p $$pid_file 2>/dev/null || true)
	# A crash leaves the number behind, and another process may have it by now.
	is_server() { [[ -n "$$pid" ]] && grep -qzx cluster_name=ubscore /proc/$$pid/cmdline 2>/dev/null; }
	if is_server; then
	  echo "stopping the embedded PostgreSQL, process $$pid"
	  kill -INT "$$pid"
	  for _ in {1..600}; do is_server || break; sleep 0.1; done
	  ! is_server || { echo "it did not stop within 60 s; nothing was removed" >&2; exit 1; }
	  rmdir -- "$$socket_directory" || true
	fi
	echo "removing $$PWD/$(DATA_DIR)"
	rm -rf -- "$$PWD/$(DATA_DIR)"

# A shell function for the recipes below: installs Debian packages, as root or by sudo, after
# a message; elsewhere it prints the missing packages.
define INSTALL
as_root() { if [[ $$EUID == 0 ]]; then "$$@"; else sudo "$$@"; fi; }
update() { as_root apt-get update --quiet=2; }
install() {
  local command="apt-get install --yes --no-install-recommends $$*"
  if ! command -v apt-get >/dev/null; then
    echo "please install, by this system's package manager: $$*" >&2
    exit 1
  fi
  if [[ $$EUID != 0 ]] && ! command -v sudo >/dev/null; then
    echo "missing packages: $$*; run as root: $$command" >&2
    exit 1
  fi
  echo "installing Debian packages: $$*"
  update
  as_root env DEBIAN_FRONTEND=noninteractive $$command
}
endef

# Another one, after INSTALL: a Python environment with every package at the version in a file.
define VENV
venv() {
  local place=$$1 wanted=$$2 what=$$3
  ! cmp --silent $$wanted $$place/requirements.txt || return 0
  command -v python3 >/dev/null || install python3
  python3 -c 'import ensurepip' 2>/dev/null || install python3-venv
  echo "installing $$what below $$place"
  rm -rf -- $$place
  python3 -m venv $$place
  $$place/bin/pip install --quiet --disable-pip-version-check --requirement $$wanted
  # Last, so that an interrupted installation starts again.
  cp $$wanted $$place/
}
endef

need-rust:
	@$(INSTALL)
	if ! command -v $(CARGO) >/dev/null; then
	  echo "cargo is missing; install Rust from https://rustup.rs, then open a new shell" >&2
	  exit 1
	fi
	# The linker, and the C parts of some crates.
	command -v cc >/dev/null || install gcc libc6-dev

# The test of the runbook runs its commands literally.
need-curl:
	@$(INSTALL)
	command -v curl >/dev/null || install curl

# The other implementation of signatures, beside ours.
need-openssl:
	@$(INSTALL)
	command -v openssl >/dev/null || install openssl

# Tests the API by its description.
need-schemathesis:
	@$(INSTALL)
	$(VENV)
	venv $(SCHEMATHESIS) tests/openapi/requirements.txt schemathesis

# Reads the schema of venues' sessions, apart from our own code.
need-sbe:
	@$(INSTALL)
	$(VENV)
	venv $(SBE) tests/stream/requirements.txt sbe

# The console is tested in a real browser, without a window.
need-chromium:
	@$(INSTALL)
	if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
	  install chromium chromium-driver fonts-dejavu-core
	fi

# The console is checked with these rules of accessibility: one script, in a Python package.
need-axe: need-schemathesis
	@wanted=tests/browser/requirements.txt
	! cmp --silent $$wanted $(AXE)/requirements.txt || exit 0
	echo "installing axe below $(AXE)"
	rm -rf -- $(AXE)
	$(SCHEMATHESIS)/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(AXE) --requirement $$wanted
	cp $$wanted $(AXE)/

# The chain of the tests: a real node, one program in an npm package. Its lock file pins the bytes. npm is needed for the installation
# alone; where the system has none, a Python package brings one.
need-anvil:
	@$(INSTALL)
	$(VENV)
	wanted=tests/chain/package-lock.json
	! cmp --silent $$wanted $(ANVIL)/installed.json || exit 0
	needed=2.35
	libc=$$(getconf GNU_LIBC_VERSION 2>/dev/null || echo "no glibc")
	# Another C library sorts before every number.
	if ! printf '%s\n' $$needed "$${libc#glibc }" | sed 's/^no .*/0/' | sort --check=quiet --version-sort; then
	  echo "anvil, the chain of the tests, needs glibc $$needed or later; this system has $$libc" >&2
	  exit 1
	fi
	if ! command -v npm >/dev/null; then
	  venv $(NODEJS) tests/chain/requirements.txt npm
	  export PATH="$$PWD/$(NODEJS)/bin:$$PATH"
	fi
	echo "installing anvil below $(ANVIL)"
	rm -rf -- $(ANVIL) && mkdir -p $(ANVIL)
	cp tests/chain/package.json $$wanted $(ANVIL)/
	npm ci --prefix $(ANVIL) --ignore-scripts --no-audit --no-fund --loglevel=error
	ln -s node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil $(ANVIL)/anvil
	./$(ANVIL)/anvil --version >/dev/null
	# Last, so that an interrupted installation starts again.
	cp $$wanted $(ANVIL)/installed.json

# Checkers of licences, container files and the SBOM.
need-linters:
	@$(INSTALL)
	$(VENV)
	venv $(LINTERS) packaging/requirements.txt "hadolint and other linters"

# systemd's own checker of units, troff for the manual pages, and git for the version. Debian's package `systemd` starts nothing, and is
# not the first process unless `systemd-sysv` makes it so.
need-packaging:
	@$(INSTALL)
	command -v systemd-analyze >/dev/null || install systemd
	command -v groff >/dev/null || install groff-base
	command -v git >/dev/null || install git

# Prometheus' own checker, for the rules in config/alerts.yml. Debian's package is a service too, which would start and, from
# then on with every boot, take the port of our operators' listener: so it is unpacked into the clone, and not installed.
need-promtool:
	@$(INSTALL)
	unpacked=target/prometheus/usr/bin/promtool
	if command -v promtool >/dev/null || [[ -x $$unpacked ]]; then exit 0; fi
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	  echo "promtool is missing; please install Prometheus, or put promtool into $${unpacked%/*}" >&2
	  exit 1
	fi
	echo "promtool is missing; unpacking Debian's prometheus into target/prometheus"
	rm -rf target/prometheus && mkdir -p target/prometheus
	cd target/prometheus
	apt-get download --quiet=2 prometheus || { update && apt-get download --quiet=2 prometheus; }
	dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb usr/bin/prometheus
	./usr/bin/promtool --version >/dev/null

need-nightly:
	@if ! $(CARGO) +nightly --version >/dev/null 2>&1; then
	  echo "this needs Rust's nightly compiler; run: rustup toolchain install nightly --profile minimal" >&2
	  exit 1
	fi

need-postgres:
	@$(INSTALL)
	found() {
	  local directory
	  for directory in "$$(pg_config --bindir 2>/dev/null || true)" /usr/lib/postgresql*/*/bin \
	      /usr/lib/postgresql*/bin /usr/libexec/postgresql* /usr/pgsql-*/bin /usr/local/pgsql/bin; do
	    [[ -x "$$directory/initdb" && -x "$$directory/postgres" ]] && return
	  done
	  command -v initdb >/dev/null && command -v postgres >/dev/null
	}
	! found || exit 0
	# ubscore runs its own server as a child. Debian's package would make and start another one,
	# for the whole system, unless this file forbids it before the package is configured.
	no_cluster=/etc/postgresql-common/createcluster.d/ubscore-no-main.conf
	if command -v apt-get >/dev/null && { [[ $$EUID == 0 ]] || command -v sudo >/dev/null; }; then
	  echo "PostgreSQL's server is missing; for its installation, $$no_cluster keeps a"
	  echo "system-wide server from being made"
	  as_root mkdir -p "$${no_cluster%/*}"
	  trap 'as_root rm -f "$$no_cluster"; as_root rmdir --ignore-fail-on-non-empty "$${no_cluster%/*}"' EXIT
	  as_root tee "$$no_cluster" >/dev/null <<< "create_main_cluster = false"
	fi
	install postgresql
	found || { echo "initdb and postgres are still not to be found" >&2; exit 1; }
