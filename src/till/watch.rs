//! What operators see of the till: calls of channels, a channel that is away, an order or a return
//! that does not end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{debug, error};

use crate::alert::{Alert, alert_about};
use crate::recharge::answers::{
    Billed, ChannelDoubt, Closing, Created, Queried, Refunded, ReturnedSum,
};
use crate::telemetry;

/// A channel is away once its calls have had no answer for so long.
const AWAY_NS: u64 = 60_000_000_000;

/// The end of a call of a channel.
pub(super) trait CallEnd {
    /// Its name in metrics.
    fn name(&self) -> &'static str;
    /// Why it is not known.
    fn doubt(&self) -> Option<&ChannelDoubt>;
}

impl CallEnd for Created {
    fn name(&self) -> &'static str {
        match self {
            Created::Created { .. } => "created",
            Created::Paid => "paid",
            Created::Refused(_) => "refused",
            Created::Unknown(_) => "unknown",
        }
    }

    fn doubt(&self) -> Option<&ChannelDoubt> {
        if let Created::Unknown(doubt) = self { Some(doubt) } else { None }
    }
}

impl CallEnd for Queried {
    fn name(&self) -> &'static str {
        match self {
            Queried::Open => "open",
            Queried::Closed => "closed",
            Queried::Absent => "absent",
            Queried::Paid(_) => "paid",
            Queried::Unknown(_) => "unknown",
        }
    }

    fn doubt(&self) -> Option<&ChannelDoubt> {
        if let Queried::Unknown(doubt) = self { Some(doubt) } else { None }
    }
}

impl CallEnd for Closing {
    fn name(&self) -> &'static str {
        match self {
            Closing::Closed => "closed",
            Closing::Paid => "paid",
            Closing::Absent => "absent",
            Closing::Unknown(_) => "unknown",
        }
    }

    fn doubt(&self) -> Option<&ChannelDoubt> {
        if let Closing::Unknown(doubt) = self { Some(doubt) } else { None }
    }
}

impl CallEnd for Refunded {
    fn name(&self) -> &'static str {
        match self {
            Refunded::Done => "done",
            Refunded::UnderWay { .. } => "under_way",
            Refunded::Refused(_) => "refused",
            Refunded::Unknown(_) => "unknown",
        }
    }

    fn doubt(&self) -> Option<&ChannelDoubt> {
        if let Refunded::Unknown(doubt) = self { Some(doubt) } else { None }
    }
}

impl CallEnd for Billed {
    fn name(&self) -> &'static str {
        match self {
            Billed::Whole(_) => "whole",
            Billed::NoTrade => "no_trade",
            Billed::NotYet => "not_yet",
            Billed::Unknown(_) => "unknown",
        }
    }

    fn doubt(&self) -> Option<&ChannelDoubt> {
        match self {
            // The channel has answered.
            Billed::Unknown(ChannelDoubt::Damaged(_)) => None,
            Billed::Unknown(doubt) => Some(doubt),
            _ => None,
        }
    }
}

impl CallEnd for ReturnedSum {
    fn name(&self) -> &'static str {
        match self {
            ReturnedSum::None => "none",
            ReturnedSum::Sum(_) => "sum",
            ReturnedSum::Unknown(_) => "unknown",
        }
    }

    fn doubt(&self) -> Option<&ChannelDoubt> {
        if let ReturnedSum::Unknown(doubt) = self { Some(doubt) } else { None }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Watch {
    /// Since when each channel has given no answer, monotonic ns.
    silent_since: Mutex<BTreeMap<String, u64>>,
}

impl Watch {
    /// Counts the end of a call.
    pub(super) fn ended(
        &self,
        channel: &str,
        call: &'static str,
        end: &impl CallEnd,
        now_ns: u64,
        took: Duration,
    ) {
        telemetry::channel_call(channel, call, end.name(), took);
        let Some(doubt) = end.doubt() else {
            self.silent_since.lock().remove(channel);
            return;
        };
        debug!(channel, call, why = %doubt, "the end of a call is not known");
        let since = *self.silent_since.lock().entry(channel.to_owned()).or_insert(now_ns);
        if now_ns.saturating_sub(since) >= AWAY_NS {
            let what =
                format_args!("channel {channel}: no call has had an end for a minute; {doubt}");
            alert_about(Alert::ChannelAway, &channel, what);
        }
    }
}

/// A close or a return that does not end: a person must look.
pub(super) fn stuck(subject: &dyn fmt::Display, what: &str) {
    error!(%subject, what, "recharge_stuck: it does not end at its channel");
}
