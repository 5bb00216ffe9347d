//! The child of `serve --dev --channel-sim`: a simulator of payment channels, and the configuration
//! that its keys make.
//!
//! The child ends when its standard input ends, so it never outlives this process. A child that
//! ends before is started again at the same address.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::Method;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::channels::wire::{HttpWire, WireCall, fetch};
use crate::config::Config;
use crate::config::channels::{ChannelKind, ChannelSection};
use crate::config::secret::Secret;
use crate::entropy::{Entropy, SystemEntropy};
use crate::environment;

/// The channels of the simulator.
const WECHAT: &str = "wechat";
const CARD: &str = "card";
/// The most CNY of one order.
const MAX: &str = "50000";
/// Between two looks whether the child runs.
const LOOK: Duration = Duration::from_millis(500);
/// The simulator answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// The beginning of its ready line.
const READY: &str = "ubscore channel-sim ready http=";

/// The running simulator. Dropping it ends the child.
pub struct Simulator {
    address: SocketAddr,
    ending: Arc<Ending>,
    watch: Option<JoinHandle<()>>,
}

/// Whether the watch over the child ends.
#[derive(Default)]
struct Ending {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Simulator {
    /// Starts the child below the data directory, and puts its channels into the configuration.
    ///
    /// # Errors
    /// The child does not start, or the configuration does not take its channels.
    pub fn start(config: &mut Config) -> anyhow::Result<Simulator> {
        let directory = config.data_dir.join("channel-sim");
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&directory)
            .with_context(|| format!("make {}", directory.display()))?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (child, address) = spawn(&directory, any).context("start the channel simulator")?;
        let ending = Arc::<Ending>::default();
        let watched = Arc::clone(&ending);
        let place = directory.clone();
        let watch = thread::Builder::new()
            .name("channel simulator".to_owned())
            .spawn(move || keep(child, &place, address, &watched))?;
        let simulator = Simulator { address, ending, watch: Some(watch) };
        simulator.configure(config, &directory)?;
        Ok(simulator)
    }

    /// Puts the channels into the configuration, with a proof secret that stays.
    fn configure(&self, config: &mut Config, directory: &Path) -> anyhow::Result<()> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let file = |name: &str| Some(directory.join(name));
        let text = |text: &str| Some(text.to_owned());
        let common = ChannelSection {
            asset: text("CNY"),
            currency: text("CNY"),
            minor_digits: Some(2),
            max: text(MAX),
            base_url: Some(format!("http://{}", self.address)),
            ..ChannelSection::default()
        };
        let certificate = directory.join("platform_1_certificate.pem");
        let wechat = ChannelSection {
            kind: Some(ChannelKind::WeChat),
            mchid: Some(read("mchid")?),
            appid: Some(read("appid")?),
            merchant_serial: Some(read("merchant_serial")?),
            merchant_key_file: file("merchant_key.pem"),
            api_v3_key_file: file("api_v3_key"),
            platform_keys: vec![certificate.display().to_string()],
            // A simulator closes at any age, and a person does not wait.
            close_after_ms: Some(0),
            ..common.clone()
        };
        let card = ChannelSection {
            kind: Some(ChannelKind::Stripe),
            api_key_file: file("card_api_key"),
            webhook_secret_file: file("card_webhook_secret"),
            ..common
        };
        for (name, mut section) in [(WECHAT, wechat), (CARD, card)] {
            section.read_files(name)?;
            config.channels.entry(name.to_owned()).or_insert(section);
        }
        let recharge = &mut config.recharge;
        recharge.enabled = true;
        recharge.deployment.get_or_insert_with(|| "dev".to_owned());
        if recharge.proof_secret.is_none() {
            let path = directory.join("proof_secret");
            let secret = proof_secret(&path);
            let secret = secret.with_context(|| format!("make {}", path.display()))?;
            recharge.proof_secret = Some(Secret::new(secret));
        }
        config.validate(true).context("take the channels of the simulator")
    }

    /// Has the callbacks of cards sent to this listener, and prints the simulator's address.
    /// Orders of WeChat Pay name their listener themselves.
    ///
    /// # Errors
    /// The simulator does not answer.
    pub fn call_back(&self, listener: SocketAddr) -> anyhow::Result<()> {
        let base = format!("http://{}", self.address);
        let wire = HttpWire::new(&base, PATIENCE, PATIENCE)?;
        let body = serde_json::json!({"url": format!("http://{listener}/callbacks/v1/{CARD}")});
        let target = "/sim/card/callback_url".to_owned();
        let call = WireCall::post(target, "application/json", body.to_string().into_bytes());
        let answer = fetch(&wire, &WireCall { method: Method::PUT, ..call })?;
        ensure!(answer.status == 200, "the channel simulator answered {}", answer.status);
        // If stdout is closed, the service goes on.
        drop(writeln!(io::stdout().lock(), "{READY}{}", self.address));
        Ok(())
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        *self.ending.is_over.lock() = true;
        self.ending.changed.notify_all();
        if let Some(watch) = self.watch.take() {
            // A panic was reported by its thread.
            drop(watch.join());
        }
    }
}

/// Starts a child at an address; returns it with the address that it has.
fn spawn(directory: &Path, listen: SocketAddr) -> anyhow::Result<(Child, SocketAddr)> {
    let program: PathBuf = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(program);
    command.arg("channel-sim").arg("--until-stdin-ends");
    command.arg("--listen").arg(listen.to_string()).arg("--data-dir").arg(directory);
    environment::clean(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
    // Ctrl-C on a terminal is for this process, which ends the child behind its own stop.
    let mut child = command.process_group(0).spawn()?;
    let mut line = String::new();
    let out = child.stdout.take().context("a piped stdout")?;
    BufReader::new(out).read_line(&mut line)?;
    match line.trim().strip_prefix(READY).and_then(|address| address.parse().ok()) {
        Some(address) => Ok((child, address)),
        None => {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it ended before it was ready; it said {line:?}")
        }
    }
}

/// Starts the child again whenever it ends, until the end of this process.
fn keep(mut child: Child, directory: &Path, address: SocketAddr, ending: &Ending) {
    let mut is_over = ending.is_over.lock();
    while !*is_over {
        ending.changed.wait_for(&mut is_over, LOOK);
        if *is_over || !matches!(child.try_wait(), Ok(Some(_))) {
            continue;
        }
        warn!("the channel simulator has ended, and is started again");
        match spawn(directory, address) {
            Ok((next, _)) => child = next,
            Err(error) => warn!(error = format!("{error:#}"), "it does not start; tried again"),
        }
    }
    // It may have ended before.
    drop(child.kill());
    drop(child.wait());
}

/// The secret of proofs in a file, which is made at the first start.
fn proof_secret(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    let mut entropy = SystemEntropy::default();
    let secret = format!("{:032x}{:032x}", entropy.u128(), entropy.u128());
    // Whole or not at all: half a secret would be one of another deployment.
    let draft = path.with_extension("draft");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(secret.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    Ok(secret)
}
