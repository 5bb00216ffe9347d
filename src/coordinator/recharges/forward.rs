//! The money of a PAID order that goes on to Spot: one transfer of the sum that was credited, under
//! a cid that no client can have. The cid makes it one transfer over any crash.

use std::time::Duration;

use tracing::warn;

use super::Recharges;
use crate::adapters::Adapter;
use crate::coordinator::{Rejection, Request};
use crate::crash;
use crate::postgres::Error;
use crate::postgres::store::{Transfer, fingerprint};
use crate::recharge::RechargeId;
use crate::recharge::order::Recharge;
use crate::validation::Checked;
use domain::asset::{Asset, AssetStatus};
use domain::code::Code;
use domain::transfer::{Cid, Direction, ReqId, State};

/// Where the transfer of an order stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// It has ended.
    Ended {
        /// The transfer.
        req_id: ReqId,
        /// Its final state.
        state: State,
        /// Why it failed.
        code: Option<Code>,
    },
    /// It is on its way.
    UnderWay {
        /// The transfer.
        req_id: ReqId,
    },
    /// There is none, and none is accepted now.
    Refused(Code),
}

impl From<&Transfer> for Forwarding {
    fn from(transfer: &Transfer) -> Forwarding {
        let req_id = transfer.intent.req_id;
        match transfer.state.is_terminal() {
            true => Forwarding::Ended { req_id, state: transfer.state, code: transfer.code },
            false => Forwarding::UnderWay { req_id },
        }
    }
}

/// The cid of the transfer of an order.
pub fn forward_cid(id: RechargeId) -> Cid {
    Cid::of_operation(&format!("recharge/{}", id.ulid())).expect("35 bytes of a cid and a slash")
}

impl<T: Adapter, F: Adapter> Recharges<T, F> {
    /// Sends the sum that was credited for a PAID order on to Spot, once. Users' limits do not
    /// count it; the status of the asset and pauses do. Waits `at_most` for its end.
    ///
    /// # Errors
    /// A [`Rejection`]: it may be accepted or not. The same call again tells.
    pub async fn forward(
        &self,
        order: &Recharge,
        at_most: Duration,
    ) -> Result<Forwarding, Rejection> {
        let away = |error: Error| {
            warn!(%error, "a transfer to Spot waits for PostgreSQL");
            Rejection::of(Code::SystemError)
        };
        let catalog = self.reads.catalog();
        let asset = catalog.by_id(order.asset).ok_or(Code::InvalidAsset)?;
        let credited = self.reads.credited(order.id).await.map_err(away)?;
        let Some(amount) = credited else { return Err(Rejection::of(Code::SystemError)) };
        let cid = forward_cid(order.id);
        let pauses = self.reads.pauses();
        let direction = Direction::FundingToSpot;
        let refused = match refusal(asset) {
            None if pauses.covering(direction, asset.id).is_some() => {
                Some(Code::TransferNotAllowed)
            }
            refused => refused,
        };
        if let Some(code) = refused {
            return self.found_or(order, cid, code).await;
        }
        let (source, target) = direction.accounts();
        let text = amount.text(asset.precision);
        let request = Request {
            user: order.user,
            cid: Some(cid.clone()),
            checked: Checked { direction, asset: asset.clone(), amount },
            fingerprint: fingerprint(source, target, &asset.symbol, &text),
            reservation: None,
            pauses,
        };
        let answered = match self.coordinator.submit(request).await {
            Ok(submitted) => submitted.reply.await.unwrap_or_else(|_| Err(Rejection::unknown())),
            Err(rejection) => Err(rejection),
        };
        let accepted = match answered {
            Ok(accepted) => accepted,
            Err(rejection) if rejection.unknown => return Err(rejection),
            Err(rejection) => return self.found_or(order, cid, rejection.code).await,
        };
        crash::point("follow_after_submit");
        let mut progress = accepted.progress.clone();
        let ended = async move {
            // An error: its worker ends with the process.
            drop(progress.wait_for(|transfer| transfer.state.is_terminal()).await);
        };
        tokio::select! {
            () = ended => {}
            () = self.clock.sleep(at_most) => {}
        }
        let stands = Forwarding::from(&*accepted.progress.borrow());
        Ok(stands)
    }

    /// The transfer of an order that was accepted before; without one, why none is accepted now.
    async fn found_or(
        &self,
        order: &Recharge,
        cid: Cid,
        code: Code,
    ) -> Result<Forwarding, Rejection> {
        let found = self.coordinator.find_cid(order.user, cid).await?;
        Ok(found.map_or(Forwarding::Refused(code), |transfer| Forwarding::from(&transfer)))
    }
}

/// Why an asset is not transferred now; `None`: it is.
fn refusal(asset: &Asset) -> Option<Code> {
    if asset.status != AssetStatus::Active {
        return Some(Code::AssetSuspended);
    }
    (!asset.transfer_enabled).then_some(Code::TransferNotAllowed)
}
