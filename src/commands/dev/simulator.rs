//! The child of `serve --dev --channel-sim`: a simulator of payment channels, and the configuration
//! that its keys make.
//!
//! A child that ends before this process is started again at the same address.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::Method;

use super::child::{KeptChild, started};
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
/// The simulator answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// The beginning of its ready line.
const READY: &str = "ubscore channel-sim ready http=";

/// The running simulator. Dropping it ends the child.
pub struct Simulator {
    address: SocketAddr,
    _child: KeptChild,
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
        let place = directory.clone();
        let again = move || spawn(&place, address).map(|(child, _)| child);
        let child = KeptChild::keep("the channel simulator", child, again)?;
        let simulator = Simulator { address, _child: child };
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

/// Starts a child at an address; returns it with the address that it has.
fn spawn(directory: &Path, listen: SocketAddr) -> anyhow::Result<(Child, SocketAddr)> {
    let program: PathBuf = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(program);
    command.arg("channel-sim").arg("--until-stdin-ends");
    command.arg("--listen").arg(listen.to_string()).arg("--data-dir").arg(directory);
    environment::clean(&mut command);
    started(&mut command, |line| line.strip_prefix(READY).and_then(|address| address.parse().ok()))
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
