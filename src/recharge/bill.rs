//! The daily bills of channels: their states, the differences that they show, and the days of a
//! channel.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};

use super::answers::BillSums;

/// Where the bill of one day stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum BillState {
    /// It is to be fetched.
    Wanted = 0,
    /// It is here, and compared again until nothing differs.
    Compared = 10,
    /// Nothing differs.
    Clean = 40,
}

impl BillState {
    /// Every state.
    pub const ALL: [BillState; 3] = [BillState::Wanted, BillState::Compared, BillState::Clean];

    /// The name in lists.
    pub fn name(self) -> &'static str {
        match self {
            BillState::Wanted => "WANTED",
            BillState::Compared => "COMPARED",
            BillState::Clean => "CLEAN",
        }
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<BillState> {
        BillState::ALL.into_iter().find(|state| *state as i16 == number)
    }
}

/// A kind of difference between a bill and the rows here. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i16)]
pub enum FindingKind {
    /// A payment that bears our mark is in the bill alone.
    MissingHere = 1,
    /// A payment is here, and neither in the bill of its day nor in that of the next one.
    MissingThere = 2,
    /// A payment or a return has another amount in the bill.
    AmountDiffers = 3,
    /// A return of a payment of ours is in the bill alone.
    ReturnMissingHere = 4,
    /// A return that is done here is in no bill.
    ReturnMissingThere = 5,
    /// A refund, or a payment, has failed at the channel behind its success.
    Undone = 6,
}

impl FindingKind {
    /// Every kind.
    pub const ALL: [FindingKind; 6] = [
        FindingKind::MissingHere,
        FindingKind::MissingThere,
        FindingKind::AmountDiffers,
        FindingKind::ReturnMissingHere,
        FindingKind::ReturnMissingThere,
        FindingKind::Undone,
    ];

    /// The name in lists.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::MissingHere => "MISSING_HERE",
            FindingKind::MissingThere => "MISSING_THERE",
            FindingKind::AmountDiffers => "AMOUNT_DIFFERS",
            FindingKind::ReturnMissingHere => "RETURN_MISSING_HERE",
            FindingKind::ReturnMissingThere => "RETURN_MISSING_THERE",
            FindingKind::Undone => "UNDONE",
        }
    }

    /// Whether the channel is asked about it.
    pub fn asks(self) -> bool {
        match self {
            FindingKind::MissingThere | FindingKind::AmountDiffers | FindingKind::Undone => false,
            FindingKind::MissingHere
            | FindingKind::ReturnMissingHere
            | FindingKind::ReturnMissingThere => true,
        }
    }

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The kind with this number.
    pub fn from_number(number: i16) -> Option<FindingKind> {
        FindingKind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The next step, for people.
    pub fn plan(self) -> &'static str {
        match self {
            FindingKind::MissingHere => "the channel is asked, and its payment decided as always",
            FindingKind::MissingThere | FindingKind::AmountDiffers | FindingKind::Undone => {
                "a person asks the channel; nothing is taken from a user"
            }
            FindingKind::ReturnMissingHere => "the channel is asked, and its word is booked",
            FindingKind::ReturnMissingThere => {
                "the channel is asked again; a person after two days"
            }
        }
    }
}

/// Where a finding stands. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum FindingState {
    /// The data show it.
    Open = 10,
    /// The data do not show it any more.
    Done = 40,
    /// An operator, or the word of the channel, has explained it. Terminal.
    Dismissed = -40,
}

impl FindingState {
    /// Every state.
    pub const ALL: [FindingState; 3] =
        [FindingState::Open, FindingState::Done, FindingState::Dismissed];

    /// The name in lists.
    pub fn name(self) -> &'static str {
        match self {
            FindingState::Open => "OPEN",
            FindingState::Done => "DONE",
            FindingState::Dismissed => "DISMISSED",
        }
    }

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<FindingState> {
        FindingState::ALL.into_iter().find(|state| state.number() == number)
    }
}

/// The bill of one day of a channel, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelBill {
    /// The channel's name.
    pub channel: String,
    /// The day, as the channel counts days.
    pub day: Date,
    /// Where it stands.
    pub state: BillState,
    /// Tries to fetch it.
    pub tries: i64,
    /// The try that has brought it whole; `None`: none yet. Then the lines of that try count.
    pub run: Option<i64>,
    /// Comparisons since it was fetched.
    pub looks: u32,
    /// When the till looks at it next; `None`: never.
    pub next_at: Option<Timestamp>,
    /// When it came.
    pub fetched_at: Option<Timestamp>,
    /// Its sums, in the channel's minor units. The fees are those of our lines.
    pub sums: BillSums,
    /// The fees of the other lines, the channel's minor units.
    pub foreign_fees: i64,
    /// Its lines that are neither marked as ours nor of a payment here.
    pub foreign: i64,
    /// Why the last try brought no bill.
    pub what: Option<String>,
    /// It is to be fetched anew. Its state stands until then.
    pub again: bool,
}

/// A difference between a bill and the rows here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillDifference {
    /// The kind.
    pub kind: FindingKind,
    /// The kind of its line, as in `channel_bill_lines`.
    pub line_kind: Option<i16>,
    /// The trade_no, or the number of the return.
    pub reference: String,
    /// The channel's number of the payment.
    pub trade_no: String,
    /// The merchant number of the payment.
    pub merchant_no: String,
    /// The merchant's number of the return.
    pub return_no: Option<String>,
    /// The channel's number of the return.
    pub channel_return_no: Option<String>,
    /// ISO 4217, upper case.
    pub currency: String,
    /// In the bill, the channel's minor units.
    pub there: Option<i64>,
    /// As it is recorded, the channel's minor units.
    pub here: Option<i64>,
}

/// A difference that was found, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillFinding {
    /// Its number.
    pub id: i64,
    /// The channel's name.
    pub channel: String,
    /// The day of the bill.
    pub day: Date,
    /// The difference.
    pub difference: BillDifference,
    /// Where it stands.
    pub state: FindingState,
    /// By the service's clock.
    pub found_at: Timestamp,
    /// By the service's clock.
    pub updated_at: Timestamp,
    /// The author of its dismissal.
    pub actor: Option<String>,
    /// The reason of its dismissal.
    pub reason: Option<String>,
    /// The word of the channel about it.
    pub what: Option<String>,
}

/// The days of a channel, and the time at which a day's bill is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BillDays {
    /// The offset in which the channel counts days.
    pub offset: Offset,
    /// The bill of a day is there at this time of the next one.
    pub at: Time,
}

impl BillDays {
    /// The beginning and the end of a day. `None`: no timestamp is so far away.
    pub fn span(&self, day: Date) -> Option<(Timestamp, Timestamp)> {
        let midnight = |day: Date| self.offset.to_timestamp(day.at(0, 0, 0, 0)).ok();
        Some((midnight(day)?, midnight(day.tomorrow().ok()?)?))
    }

    /// The day of a time.
    pub fn day_of(&self, at: Timestamp) -> Date {
        self.offset.to_datetime(at).date()
    }

    /// When the bill of a day is due. `None`: no timestamp is so far away.
    pub fn due(&self, day: Date) -> Option<Timestamp> {
        self.offset.to_timestamp(day.tomorrow().ok()?.to_datetime(self.at)).ok()
    }

    /// The last day with a bill that is due.
    pub fn last_due(&self, now: Timestamp) -> Date {
        let today = self.day_of(now);
        let before = |days: i64| today.checked_sub(days.days()).unwrap_or(Date::MIN);
        let yesterday = before(1);
        if self.due(yesterday).is_some_and(|due| due <= now) { yesterday } else { before(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a day is that of the channel, and its bill is asked for behind `bill_at` of the next
    /// one.
    #[test]
    fn a_day_is_that_of_the_channel() {
        let at = Time::constant(10, 30, 0, 0);
        let days = BillDays { offset: Offset::constant(8), at };
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let day = Date::constant(2026, 11, 26);
        let span = days.span(day).expect("a day of today");
        assert_eq!(span, (time("2026-11-25T16:00:00Z"), time("2026-11-26T16:00:00Z")));
        assert_eq!(days.day_of(span.0), day);
        assert_eq!(days.day_of(span.1), Date::constant(2026, 11, 27));
        assert_eq!(days.due(day), Some(time("2026-11-27T02:30:00Z")));
        assert_eq!(days.last_due(time("2026-11-27T02:30:00Z")), day);
        assert_eq!(days.last_due(time("2026-11-27T02:29:59Z")), Date::constant(2026, 11, 25));
    }
}
