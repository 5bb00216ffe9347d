//! Pauses of operators: of a direction, of an asset, or of one direction of one asset. A pause is
//! checked once for each transfer, at the accept. Transfers under way continue.

use jiff::Timestamp;
use tokio::sync::watch;

use domain::asset::AssetId;
use domain::transfer::Direction;

/// The transfers that a pause refuses: of a direction, of an asset, or of both. Never all: that is
/// a halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    direction: Option<Direction>,
    asset: Option<AssetId>,
}

impl Scope {
    /// A `None` means every direction, or every asset. Two `None`s are no scope.
    pub fn new(direction: Option<Direction>, asset: Option<AssetId>) -> Option<Scope> {
        (direction.is_some() || asset.is_some()).then_some(Scope { direction, asset })
    }

    /// The one direction, `None` for both.
    pub fn direction(self) -> Option<Direction> {
        self.direction
    }

    /// The one asset, `None` for all.
    pub fn asset(self) -> Option<AssetId> {
        self.asset
    }

    fn covers(self, direction: Direction, asset: AssetId) -> bool {
        self.direction.is_none_or(|paused| paused == direction)
            && self.asset.is_none_or(|paused| paused == asset)
    }
}

/// One pause, with its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The transfers that are refused.
    pub scope: Scope,
    /// The time of its beginning, by PostgreSQL's clock.
    pub at: Timestamp,
    /// The operator.
    pub actor: String,
    /// The reason.
    pub reason: String,
}

/// Every pause in force. Replaced as a whole at each change. A request that was checked against
/// this set holds it until its accept is decided. So a change can wait for all requests of the
/// earlier set.
#[derive(Debug)]
pub struct Pauses {
    pauses: Vec<Pause>,
    /// Dropped with the last holder of the set.
    kept: watch::Sender<()>,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses::new(Vec::new())
    }
}

impl Pauses {
    /// These pauses.
    pub fn new(pauses: Vec<Pause>) -> Pauses {
        Pauses { pauses, kept: watch::Sender::new(()) }
    }

    /// All of them.
    pub fn all(&self) -> &[Pause] {
        &self.pauses
    }

    /// The pause that refuses a new transfer, if there is one.
    pub fn covering(&self, direction: Direction, asset: AssetId) -> Option<Scope> {
        self.pauses.iter().map(|pause| pause.scope).find(|scope| scope.covers(direction, asset))
    }

    /// Returns an error once the set has no holder.
    pub fn kept(&self) -> watch::Receiver<()> {
        self.kept.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_covers_what_it_names_and_nothing_else() {
        use Direction::{FundingToSpot as There, SpotToFunding as Back};
        let (one, other) = (AssetId(1), AssetId(2));
        for (direction, asset, want) in [
            (Some(There), None, [true, true, false, false]),
            (None, Some(one), [true, false, true, false]),
            (Some(Back), Some(other), [false, false, false, true]),
        ] {
            let scope = Scope::new(direction, asset).expect("something is named");
            let transfers = [(There, one), (There, other), (Back, one), (Back, other)];
            let covered = transfers.map(|(direction, asset)| scope.covers(direction, asset));
            assert_eq!(covered, want, "{scope:?}");
        }
        assert_eq!(Scope::new(None, None), None);
    }

    #[test]
    fn the_last_holder_of_a_set_closes_its_channel() {
        let pauses = std::sync::Arc::new(Pauses::default());
        let (kept, keeper) = (pauses.kept(), pauses.clone());
        drop(pauses);
        assert!(kept.has_changed().is_ok());
        drop(keeper);
        assert!(kept.has_changed().is_err());
    }
}
