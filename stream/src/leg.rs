//! Legs as rows of a message, and back.

use domain::posting::{LEGS_MAX, Leg, Place, PlaceKind, Posting};

use crate::block::LegRow;

/// The legs of a message, in order. Empty if one of them cannot be read or if there are too many:
/// UBSCore refuses a posting without legs, and the command keeps its number.
pub fn posting(rows: &[LegRow]) -> Posting {
    if rows.len() > LEGS_MAX {
        return Posting::new();
    }
    let legs: Option<Posting> = rows.iter().map(LegRow::leg).collect();
    legs.unwrap_or_default()
}

impl LegRow {
    /// The leg; `None` for an unknown kind of place, and for a purpose without a frozen place.
    pub fn leg(&self) -> Option<Leg> {
        let purpose = self.purpose.get();
        let place = |kind: u8, number: u64| match kind {
            kind if kind == PlaceKind::Outside as u8 => Some(Place::Outside),
            kind if kind == PlaceKind::Available as u8 => Some(Place::Available(number)),
            kind if kind == PlaceKind::Frozen as u8 => {
                Some(Place::Frozen { user: number, purpose })
            }
            kind if kind == PlaceKind::Hold as u8 => Some(Place::Hold(number)),
            _ => None,
        };
        let from = place(self.from_kind, self.from.get())?;
        let to = place(self.to_kind, self.to.get())?;
        let is_frozen = |place| matches!(place, Place::Frozen { .. });
        if purpose != 0 && !is_frozen(from) && !is_frozen(to) {
            return None;
        }
        Some(Leg { from, to, asset: self.asset.get(), amount: self.amount.get() })
    }
}

impl From<Leg> for LegRow {
    /// Of two frozen places the row keeps the purpose of the first: UBSCore refuses such a leg.
    fn from(leg: Leg) -> LegRow {
        let parts = |place| match place {
            Place::Outside => (0, 0),
            Place::Available(number) | Place::Hold(number) => (number, 0),
            Place::Frozen { user, purpose } => (user, purpose),
        };
        let ((from, paid), (to, reached)) = (parts(leg.from), parts(leg.to));
        LegRow {
            from: from.into(),
            to: to.into(),
            amount: leg.amount.into(),
            asset: leg.asset.into(),
            from_kind: leg.from.kind() as u8,
            to_kind: leg.to.kind() as u8,
            purpose: if paid == 0 { reached } else { paid }.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_returns_from_its_row_and_an_odd_row_is_no_posting() {
        let places = [
            Place::Outside,
            Place::Available(7),
            Place::Frozen { user: 8, purpose: 9 },
            Place::Hold(10),
        ];
        for from in places {
            for to in places {
                let leg = Leg { from, to, asset: 3, amount: u64::MAX };
                assert_eq!(LegRow::from(leg).leg(), Some(leg));
            }
        }
        let leg = Leg { from: places[1], to: places[3], asset: 3, amount: 1 };
        let row = LegRow::from(leg);
        for odd in [
            LegRow { from_kind: 4, ..row },
            LegRow { to_kind: 255, ..row },
            LegRow { purpose: 1.into(), ..row },
        ] {
            assert_eq!(posting(&[row, odd]), Posting::new());
        }
        assert_eq!(posting(&[row; LEGS_MAX]).len(), LEGS_MAX);
        assert_eq!(posting(&[row; LEGS_MAX + 1]), Posting::new());
    }
}
