//! The words of a channel, verified: a payment, money that was taken back, a hint.

use jiff::Timestamp;

/// One payment as its channel reports it, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The merchant number, as the channel has it: ours or a foreign one.
    pub merchant_no: String,
    /// The channel's own number. With the channel's name it is the key of a payment.
    pub trade_no: String,
    /// The amount that arrives, in the channel's minor units. Above 0.
    pub minor_units: i64,
    /// The amount that the payer was asked for, in the channel's minor units.
    pub total_minor_units: i64,
    /// ISO 4217, upper case.
    pub currency: String,
    /// The merchant bears a part of the price, or the channel names a discount of unknown type.
    pub discount: bool,
    /// The part that the channel had given back before this report.
    pub returned: Returned,
    /// The time of payment, by the channel's clock.
    pub paid_at: Timestamp,
    /// The proof of the order: `attach`, or the metadata `ubscore`.
    pub proof: Option<String>,
}

/// The part of a payment that its channel has given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing.
    None,
    /// Some of it.
    Part,
    /// All of it.
    Whole,
}

impl Facts {
    /// Puts the payments of an order in the turn in which they are decided: those that stand before
    /// those of which money went back, and then by time. Behind a restore the first one that fits
    /// has the credit of the order, and a second payment was sent back as a whole.
    pub fn in_turn(paid: &mut [Facts]) {
        let place = |returned| match returned {
            Returned::None => 0,
            Returned::Part => 1,
            Returned::Whole => 2,
        };
        paid.sort_by_key(|facts| (place(facts.returned), facts.paid_at));
    }
}

/// A verified message of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Money has come.
    Payment(Facts),
    /// Money was taken back.
    Taken(Taking),
    /// Taken money has come back.
    GivenBack(Taking),
    /// The state of an order may have changed. A query shows it.
    Hint {
        /// The merchant number, as the channel has it.
        merchant_no: String,
    },
    /// Nothing of interest.
    Nothing,
}

/// Money of a payment that its channel has taken back, or has given back again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taking {
    /// The merchant number, where the channel tells it: a dispute of a card has none.
    pub merchant_no: Option<String>,
    /// The channel's number of the payment.
    pub trade_no: String,
    /// The channel's own number of this taking.
    pub number: String,
    /// The amount, in the channel's minor units. Above 0.
    pub minor_units: i64,
    /// ISO 4217, upper case: the channel's own, where its word has none.
    pub currency: String,
    /// The time, by the channel's clock.
    pub at: Timestamp,
}
