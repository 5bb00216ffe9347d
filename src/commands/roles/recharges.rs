//! Recharges in `ubscore serve`: the channels, the desk, and the listener of callbacks. While they
//! are off nothing is started, and PostgreSQL is asked nothing.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use domain::amount::{Amount, UNITS_MAX};
use domain::asset::Catalog;
use jiff::tz::Offset;
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::process::{self, Process, Serving};
use crate::adapters::funding::Funding;
use crate::adapters::spot::Spot;
use crate::channels::keyed::KeyedChannel;
use crate::channels::open::{OpenChannel, OpenChannels};
use crate::channels::{Channel, Renewal};
use crate::clock::Clock;
use crate::config::channels::{ChannelKind, ChannelSection};
use crate::config::recharge::{DifferingRule, DuplicateRule, LateRule, RechargeSection};
use crate::config::{self, Config};
use crate::coordinator::Coordinator;
use crate::coordinator::recharges::{RechargeRules, Recharges};
use crate::entropy::SystemEntropy;
use crate::gate::Gate;
use crate::http::callbacks::{self, CallbackDoor};
use crate::http::channel_sums::ChannelSums;
use crate::http::kept_notices::KeptNotices;
use crate::http::listener::Limits;
use crate::http::rotation::Rotating;
use crate::http::service::{RechargeDesk, Service};
use crate::http::tls::{HTTP_1_1, Tls};
use crate::postgres::admin::Admin;
use crate::postgres::database::Database;
use crate::postgres::flight_store::FlightStore;
use crate::postgres::promotions::Promotions;
use crate::postgres::recover::RECOVER_NEXT;
use crate::recharge::bill::BillDays;
use crate::recharge::proof::ProofKeys;
use crate::recharge::terms::{ChannelTerms, PaymentRule, RechargePolicy};
use crate::task::Tasks;
use crate::till::bills::{self, BillsParts};
use crate::till::{self, Till, TillOptions, TillParts};

/// The workers of the service.
type Workers = Arc<Coordinator<Spot, Funding<FlightStore<Database>>>>;

/// The parts that come before the stores: channels with their keys, and the bound listener.
pub(super) struct Opening {
    clock: Arc<dyn Clock>,
    channels: Vec<Arc<KeyedChannel>>,
    proofs: Arc<ProofSecrets>,
    tls: Option<Arc<Tls>>,
    listener: Option<TcpListener>,
}

/// The files of a channel's keys, read again and again.
struct ChannelKeys(Arc<KeyedChannel>);

impl Rotating for ChannelKeys {
    fn name(&self) -> String {
        format!("keys of channel {}", self.0.name())
    }

    fn reload(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        Ok(self.0.reread()?)
    }
}

/// The secrets of proofs, read again and again.
struct ProofSecrets {
    /// As it was last read.
    section: ArcSwap<RechargeSection>,
    keys: ProofKeys,
}

impl ProofSecrets {
    fn new(section: &RechargeSection) -> ProofSecrets {
        let deployment = section.deployment.as_deref().unwrap_or_default();
        let (secret, previous) = secrets(section);
        let keys = ProofKeys::new(deployment, secret, previous);
        ProofSecrets { section: ArcSwap::from_pointee(section.clone()), keys }
    }
}

impl Rotating for ProofSecrets {
    fn name(&self) -> String {
        "secrets of proofs".to_owned()
    }

    fn reload(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let known = self.section.load_full();
        let section = known.read_again()?;
        if section == *known {
            return Ok(false);
        }
        let (secret, previous) = secrets(&section);
        self.keys.replace(secret, previous);
        self.section.store(Arc::new(section));
        Ok(true)
    }
}

impl Opening {
    /// Reads the channels' keys and binds the listener; nothing of it if recharges are off.
    ///
    /// # Errors
    /// A key of the configuration, by its name; the address cannot be bound.
    pub(super) async fn new(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Opening> {
        let clock = Arc::clone(clock);
        let proofs = Arc::new(ProofSecrets::new(&config.recharge));
        if !config.recharge.enabled {
            let channels = Vec::new();
            return Ok(Opening { clock, channels, proofs, tls: None, listener: None });
        }
        let timeout = Duration::from_millis(config.recharge.call_timeout_ms);
        let mut channels = Vec::new();
        for (name, section) in &config.channels {
            let channel = KeyedChannel::open(name, section, timeout, Arc::clone(&clock));
            let channel = Arc::new(channel.context("open a payment channel")?);
            outlives(config, name, &channel)?;
            channels.push(channel);
        }
        let tls = config.callbacks.tls_files().map(|files| Tls::new(files, HTTP_1_1)).transpose();
        let tls = tls.context("read a certificate")?.map(Arc::new);
        let listener = process::listen(config.callbacks.listen, "callbacks.listen").await?;
        Ok(Opening { clock, channels, proofs, tls, listener: Some(listener) })
    }

    /// The address of the listener; `None`: recharges are off.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Everything that is read again while the service runs.
    pub(super) fn rotating(&self) -> Vec<Arc<dyn Rotating>> {
        let keys = |channel: &Arc<KeyedChannel>| -> Arc<dyn Rotating> {
            Arc::new(ChannelKeys(Arc::clone(channel)))
        };
        let tls = self.tls.iter().map(|tls| Arc::clone(tls) as Arc<dyn Rotating>);
        let proofs = self.address().map(|_| Arc::clone(&self.proofs) as Arc<dyn Rotating>);
        self.channels.iter().map(keys).chain(tls).chain(proofs).collect()
    }

    /// The desk of the service; `None`: recharges are off.
    ///
    /// # Errors
    /// A key of the configuration does not fit an asset, or a name belongs to another merchant;
    /// PostgreSQL is away.
    pub(super) async fn desk(
        &self,
        config: &Config,
        admin: &Admin,
        coordinator: &Workers,
        (gate, silent): (Arc<Gate>, Arc<AtomicBool>),
        tasks: &mut Tasks,
    ) -> anyhow::Result<Option<RechargeDesk>> {
        let (Some(address), section) = (self.address(), &config.recharge) else { return Ok(None) };
        let channels = Arc::new(self.open_channels(config, address, admin).await?);
        for channel in channels.all() {
            let channel = Arc::clone(channel);
            // Each asks its channel, and blocks. Callbacks are rejected until it has answered.
            tokio::task::spawn_blocking(move || renew(&channel));
        }
        let entropy = Box::new(SystemEntropy::default());
        let (workers, clock) = (Arc::clone(coordinator), Arc::clone(&self.clock));
        let (reads, proofs) = (admin.reads().clone(), self.proofs.keys.clone());
        let restored = reads.restored().await.context("ask for the last restore")?;
        let recharges = Recharges::new(workers, reads, proofs, rules(config), clock, entropy);
        let recharges = recharges.behind(restored);
        if recharges.needs_recover() {
            warn!("RECOVER_NEEDED: recharges may be lost, and no refund is sent; {RECOVER_NEXT}");
        }
        let promotions = Promotions::new(admin.reads().clone(), admin.incarnation_number());
        let recharges = Arc::new(recharges.with_promotions(promotions, Arc::clone(&gate)));
        let (till, heard) = Till::new();
        let parts = BillsParts {
            recharges: Arc::clone(&recharges),
            channels: Arc::clone(&channels),
            days: config.channels.iter().map(bill_days).collect(),
            store: admin.bills(),
            coordinator: Arc::clone(coordinator),
            reads: admin.reads().clone(),
            gate: Arc::clone(&gate),
            clock: Arc::clone(&self.clock),
            entropy: Box::new(SystemEntropy::default()),
            silent: Arc::clone(&silent),
        };
        let bills = bills::start(parts, tasks);
        let parts = TillParts {
            recharges: Arc::clone(&recharges),
            channels: Arc::clone(&channels),
            coordinator: Arc::clone(coordinator),
            reads: admin.reads().clone(),
            gate,
            clock: Arc::clone(&self.clock),
            entropy: Box::new(SystemEntropy::default()),
            silent,
            options: TillOptions::from(config),
        };
        till::start(parts, heard, tasks);
        let (clock, keep) = (Arc::clone(&self.clock), section.notices_keep_hours.duration());
        Ok(Some(RechargeDesk {
            recharges,
            channels,
            till,
            sums: ChannelSums::default(),
            notices: KeptNotices::new(admin.clone(), clock, keep),
            bills,
            create_wait: Duration::from_millis(section.create_wait_ms),
            open_max: section.open_max,
            creates_per_minute_max: section.user_creates_per_minute_max,
        }))
    }

    /// The channels with the terms that their payments are decided under.
    async fn open_channels(
        &self,
        config: &Config,
        address: SocketAddr,
        admin: &Admin,
    ) -> anyhow::Result<OpenChannels> {
        let catalog = admin.reads().catalog();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let base = match &config.callbacks.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            // In development alone.
            None => format!("{scheme}://{address}"),
        };
        let mut channels = Vec::new();
        for keyed in &self.channels {
            let (name, section) = (keyed.name(), &config.channels[keyed.name()]);
            let terms = terms(name, section, &catalog)?;
            let Terms { terms, amount_min, amount_max } = terms;
            let merchant = section.merchant();
            let known = admin.claim_channel(name, &merchant).await;
            let known = known.context("give a channel's name to its merchant")?;
            if known.merchant != merchant {
                let allowed = format!(
                    "{}, the merchant that the name belongs to for ever; give another merchant \
                     another name",
                    known.merchant
                );
                return Err(range(format!("channels.{name}"), merchant, allowed).into());
            }
            info!(channel = name, merchant, paused = known.paused, "a payment channel is open");
            channels.push(OpenChannel {
                terms: Arc::new(terms),
                amount_min,
                amount_max,
                callback_url: format!("{base}/callbacks/v1/{name}"),
                channel: Box::new(Arc::clone(keyed)),
                paused: AtomicBool::new(known.paused),
            });
        }
        Ok(OpenChannels::new(channels))
    }

    /// Serves the listener until the process stops; `None`: recharges are off.
    pub(super) fn serve(self, process: &mut Process, service: &Arc<Service>) -> Option<Serving> {
        let listener = self.listener?;
        let config = &process.config;
        let networks = config.callbacks.networks().expect("checked with the configuration");
        let admits = move |address| {
            networks.is_empty() || networks.iter().any(|network| network.contains(&address))
        };
        let limits = Limits::of_callbacks(config);
        let door = Arc::new(CallbackDoor::new(config, Arc::clone(service)));
        let handler = move |request| callbacks::answer(Arc::clone(&door), request);
        let name = "the listener of callbacks";
        Some(process.serve_admitted(name, listener, (limits, admits), self.tls, handler))
    }
}

/// The keys of proofs, as the configuration has them.
pub(in crate::commands) fn proofs(config: &Config) -> ProofKeys {
    ProofSecrets::new(&config.recharge).keys
}

/// The secret that signs proofs, and the one before it.
fn secrets(section: &RechargeSection) -> (&[u8], Option<&[u8]>) {
    let present = section.proof_secret.as_ref().map(|secret| secret.expose().as_bytes());
    let previous = section.previous_proof_secret.as_ref().map(|secret| secret.expose().as_bytes());
    (present.unwrap_or_default(), previous)
}

/// The days of a channel, by its name.
fn bill_days((name, section): (&String, &ChannelSection)) -> (String, BillDays) {
    let hours = section.kind.map_or(0, ChannelKind::offset_hours);
    (name.clone(), BillDays { offset: Offset::constant(hours), at: section.bill_at() })
}

/// Fetches the keys of a channel.
fn renew(channel: &OpenChannel) {
    let name = &channel.terms.name;
    match channel.channel.renew() {
        Renewal::NoList => {}
        renewal => info!(channel = name, ?renewal, "asked for the channel's keys"),
    }
}

/// Refuses an order's life that the channel does not allow.
fn outlives(config: &Config, name: &str, channel: &Arc<KeyedChannel>) -> anyhow::Result<()> {
    let (life_ms, most) = (config.recharge.expires_after_ms, channel.limits().expiry_max);
    if u128::from(life_ms) > most.as_millis() {
        let allowed = format!("at most {} ms, the limit of channels.{name}", most.as_millis());
        return Err(range("recharge.expires_after_ms".to_owned(), life_ms, allowed).into());
    }
    Ok(())
}

/// The rules of orders.
fn rules(config: &Config) -> RechargeRules {
    let section = &config.recharge;
    let policy = RechargePolicy {
        differing: match section.differing {
            DifferingRule::Hold => PaymentRule::Hold,
            DifferingRule::Credit => PaymentRule::Credit,
        },
        duplicate: match section.duplicate {
            DuplicateRule::Return => PaymentRule::Return,
            DuplicateRule::Hold => PaymentRule::Hold,
        },
        late: match section.late {
            LateRule::Credit => PaymentRule::Credit,
            LateRule::Return => PaymentRule::Return,
            LateRule::Hold => PaymentRule::Hold,
        },
    };
    let life = Duration::from_millis(section.expires_after_ms);
    RechargeRules {
        policy,
        open_max: section.user_open_max,
        life,
        freeze_on_short: section.freeze_on_short,
    }
}

/// The terms of a channel, and the bounds of its orders.
struct Terms {
    terms: ChannelTerms,
    amount_min: Amount,
    amount_max: Amount,
}

/// The terms that payments of a channel are decided under.
///
/// # Errors
/// A key of the configuration does not fit an asset.
pub(in crate::commands) fn channel_terms(
    name: &str,
    section: &ChannelSection,
    catalog: &Catalog,
) -> Result<ChannelTerms, config::Error> {
    Ok(terms(name, section, catalog)?.terms)
}

/// The terms of a checked table, for the assets that there are.
fn terms(name: &str, section: &ChannelSection, catalog: &Catalog) -> Result<Terms, config::Error> {
    let key = |end: &str| format!("channels.{name}.{end}");
    let symbol = section.asset.as_deref().unwrap_or_default();
    let minor_digits = section.minor_digits.unwrap_or_default();
    let Some(asset) = catalog.by_symbol(symbol) else {
        let allowed = "the symbol of an asset; ubscore asset list has them";
        return Err(range(key("asset"), format!("{symbol:?}"), allowed));
    };
    let precision = asset.precision;
    if minor_digits > precision {
        let allowed = format!("at most {precision}, the precision of {symbol}");
        return Err(range(key("minor_digits"), minor_digits, allowed));
    }
    let currency = section.currency.clone().unwrap_or_default();
    let terms = ChannelTerms { name: name.to_owned(), asset: asset.id, currency, minor_digits };
    let amount = |end: &str, text: &str| {
        let amount = Amount::parse(text, precision, UNITS_MAX).ok();
        // A multiple of the channel's minor unit.
        let amount = amount.filter(|amount| terms.minor_units(*amount, precision).is_some());
        let allowed = || format!("an amount of {symbol} with at most {minor_digits} decimals");
        amount.ok_or_else(|| range(key(end), format!("{text:?}"), allowed()))
    };
    let unit = terms.amount(1, precision).expect("one minor unit is some units of the asset");
    let amount_min = section.min.as_deref().map_or(Ok(unit), |text| amount("min", text))?;
    let most = section.max.as_deref().unwrap_or_default();
    let amount_max = amount("max", most)?;
    if amount_max < amount_min {
        let allowed = format!("at least channels.{name}.min");
        return Err(range(key("max"), format!("{most:?}"), allowed));
    }
    Ok(Terms { terms, amount_min, amount_max })
}

/// The error for a key of the configuration.
fn range(key: String, value: impl ToString, allowed: impl Into<String>) -> config::Error {
    config::Error::Range { key: key.into(), value: value.to_string(), allowed: allowed.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dev;

    fn section(change: impl Fn(&mut ChannelSection)) -> ChannelSection {
        let text = |text: &str| Some(text.to_owned());
        let mut section = ChannelSection {
            asset: text("CNY"),
            currency: text("CNY"),
            minor_digits: Some(2),
            max: text("50000"),
            ..ChannelSection::default()
        };
        change(&mut section);
        section
    }

    /// Goal: no channel counts in units that its asset does not have.
    #[test]
    fn a_channel_fits_its_asset_or_is_refused_by_its_key() {
        let catalog = Catalog::new(dev::assets());
        let of = |section: &ChannelSection| terms("wechat", section, &catalog);
        let fits = of(&section(|_| {})).expect("terms");
        assert_eq!((fits.amount_min.units(), fits.amount_max.units()), (1, 5_000_000));
        let text = |text: &str| Some(text.to_owned());
        let usdt = of(&section(|section| section.asset = text("USDT"))).expect("terms");
        assert_eq!(usdt.amount_min.units(), 1_000_000);
        type Change = fn(&mut ChannelSection);
        let cases: [(&str, Change); 6] = [
            ("channels.wechat.asset = \"NONE\"", |s| s.asset = Some("NONE".to_owned())),
            ("channels.wechat.minor_digits = 3: must be at most 2", |s| s.minor_digits = Some(3)),
            ("channels.wechat.min = \"0.001\"", |s| s.min = Some("0.001".to_owned())),
            ("channels.wechat.min = \"0\"", |s| s.min = Some("0".to_owned())),
            ("channels.wechat.max = \"many\"", |s| s.max = Some("many".to_owned())),
            ("channels.wechat.max = \"1\": must be at least", |s| {
                (s.min, s.max) = (Some("2".to_owned()), Some("1".to_owned()));
            }),
        ];
        for (start, change) in cases {
            let said = of(&section(change)).err().expect(start).to_string();
            assert!(said.starts_with(start), "{said}");
        }
    }
}
