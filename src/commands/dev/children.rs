//! The children of `serve --dev`, as its flags name them.

use std::net::SocketAddr;

use super::chain::TestChain;
use super::simulator::Simulator;
use crate::cli::ServeArgs;
use crate::config::Config;
use crate::config::secret::Secret;

/// The running children. Dropping it ends them.
pub struct Children {
    simulator: Option<Simulator>,
    chain: Option<TestChain>,
}

impl Children {
    /// Starts those that the service itself needs, and puts them into the configuration.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(args: &ServeArgs, config: &mut Config) -> anyhow::Result<Children> {
        let simulator = args.channel_sim.then(|| Simulator::start(config)).transpose()?;
        let chain = args.chain.then(|| TestChain::start(config)).transpose()?;
        Ok(Children { simulator, chain })
    }

    /// Tells them that the service runs, and starts those that need it. Returns their part of the
    /// guide. `callbacks`: the listener of payment channels. `postgres`: the database.
    ///
    /// # Errors
    /// One of them does not answer, or does not start.
    pub fn serve(
        &mut self,
        config: &Config,
        callbacks: Option<SocketAddr>,
        postgres: &Secret,
    ) -> anyhow::Result<String> {
        if let (Some(simulator), Some(address)) = (&self.simulator, callbacks) {
            simulator.call_back(address)?;
        }
        let chain = self.chain.as_mut();
        chain.map_or(Ok(String::new()), |chain| chain.serve(config, postgres))
    }
}
