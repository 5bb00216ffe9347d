//! A transfer in the hands of a worker.

use tokio::sync::watch;
use tracing::{Span, debug_span};

use crate::coordinator::request::Quiet;
use crate::coordinator::step::Row;
use crate::postgres::store::Transfer;
use crate::quota::Reservation;
use domain::account::UserId;
use domain::code::Code;
use domain::transfer::{Intent, State};

/// See the module. There is one copy of the transfer, which its readers see. They may see its end
/// before the store has it: `row` and `code` are always those of the store.
pub(super) struct Active {
    pub(super) row: Row,
    code: Option<Code>,
    user: UserId,
    order_number: u64,
    progress: watch::Sender<Transfer>,
    /// Of the client that waits for its end, if this process has accepted it. After `progress`, so
    /// that each drop of a transfer shows the client all of it first.
    pub(super) quiet: Option<Quiet>,
    /// Monotonic ns.
    pub(super) started_ns: u64,
    /// When its readers got its end, monotonic ns. The store may not have it yet.
    pub(super) replied_ns: Option<u64>,
    /// The share of the daily limit, if this process has accepted the transfer.
    reservation: Option<Reservation>,
    pub(super) span: Span,
}

impl Active {
    /// A transfer as the store has it.
    pub(super) fn new(transfer: Transfer, fuse: bool, started_ns: u64, span: Span) -> Active {
        let Transfer { intent, state, code, retry_count, .. } = &transfer;
        let row = Row {
            direction: intent.direction,
            state: *state,
            attempt: *retry_count,
            fuse,
            resolve: false,
        };
        Active {
            row,
            code: *code,
            user: intent.user,
            order_number: intent.order_number,
            progress: watch::Sender::new(transfer),
            quiet: None,
            started_ns,
            replied_ns: None,
            reservation: None,
            span,
        }
    }

    pub(super) fn order_number(&self) -> u64 {
        self.order_number
    }

    pub(super) fn user(&self) -> UserId {
        self.user
    }

    pub(super) fn intent(&self) -> Intent {
        self.progress.borrow().intent.clone()
    }

    /// Its progress for a reader.
    pub(super) fn progress(&self) -> watch::Receiver<Transfer> {
        self.progress.subscribe()
    }

    /// A copy as the store has it.
    pub(super) fn transfer(&self) -> Transfer {
        let transfer = self.progress.borrow().clone();
        Transfer { state: self.row.state, code: self.code, ..transfer }
    }

    /// Keeps the share of its accept, which is decided.
    pub(super) fn keep(&mut self, reservation: Option<Reservation>) {
        if let Some(mut reservation) = reservation {
            reservation.accept(self.progress.borrow().created_at);
            self.reservation = Some(reservation);
        }
    }

    /// The store has returned the transfer, in a new state. The caller updates `row`.
    pub(super) fn stored(&mut self, transfer: Transfer) {
        self.code = transfer.code;
        self.progress.send_if_modified(|shown| {
            let ahead = shown.state.is_terminal();
            let (state, code) =
                if ahead { (shown.state, shown.code) } else { (transfer.state, transfer.code) };
            *shown = Transfer { state, code, ..transfer };
            !ahead
        });
    }

    /// Shows its end before the store has it. The amount that has not moved is free first, so that
    /// the client can use it after the answer.
    pub(super) fn reply(&mut self, state: State, code: Option<Code>, now: u64) {
        assert!(state.is_terminal(), "{} is no end", state.name());
        self.replied_ns = Some(now);
        self.release(state);
        let code = self.code.or(code);
        self.progress.send_modify(|shown| (shown.state, shown.code) = (state, code));
        self.quiet = None;
    }

    /// Shows its end in the store.
    pub(super) fn finish(mut self) {
        let (state, code) = (self.row.state, self.code);
        assert!(state.is_terminal(), "{} is no end", state.name());
        self.release(state);
        self.progress.send_modify(|shown| (shown.state, shown.code) = (state, code));
    }

    fn release(&mut self, state: State) {
        if let Some(reservation) = self.reservation.take() {
            reservation.end(state);
        }
    }
}

/// The span of a transfer without a request of this process.
pub(super) fn span_of(transfer: &Transfer) -> Span {
    let Intent { req_id, direction, .. } = &transfer.intent;
    debug_span!(parent: None, "transfer", %req_id, direction = direction.name())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use domain::amount::Amount;
    use domain::asset::AssetId;
    use domain::transfer::{Direction, ReqId};
    use jiff::Timestamp;
    use tokio::sync::oneshot;
    use tokio::sync::oneshot::error::TryRecvError;

    /// A transfer of user 1 in this state.
    pub(in super::super) fn transfer(number: u64, state: State) -> Transfer {
        let intent = Intent {
            req_id: ReqId::new(number.into()).expect("not zero"),
            cid: None,
            user: UserId::new(1).expect("an id"),
            asset: AssetId(1),
            amount: Amount::new(10).expect("not zero"),
            direction: Direction::FundingToSpot,
            order_number: number,
        };
        Transfer::new(intent, String::new(), state, Timestamp::UNIX_EPOCH)
    }

    fn active(state: State) -> Active {
        Active::new(transfer(1, state), true, 0, Span::none())
    }

    /// A reader gets each state of the store, until the end is shown ahead of it. From then on the
    /// reader sees the end, and a step still starts from the state in the store.
    #[test]
    fn a_reader_sees_the_end_before_the_store_has_it_and_never_goes_back() {
        let mut active = active(State::SourcePending);
        let mut reader = active.progress();
        active.stored(transfer(1, State::TargetPending));
        active.row.state = State::TargetPending;
        assert!(reader.has_changed().expect("a sender"));
        assert_eq!(reader.borrow_and_update().state, State::TargetPending);

        active.reply(State::Committed, None, 5);
        assert_eq!(reader.borrow_and_update().state, State::Committed);
        assert_eq!(active.transfer().state, State::TargetPending, "the next step starts here");

        active.stored(Transfer { retry_count: 3, ..transfer(1, State::TargetPending) });
        assert!(!reader.has_changed().expect("a sender"));
        assert_eq!(reader.borrow_and_update().state, State::Committed);
        let stored = active.transfer();
        assert_eq!((stored.state, stored.retry_count), (State::TargetPending, 3));

        active.row.state = State::Committed;
        active.finish();
        assert_eq!(reader.borrow().state, State::Committed);
    }

    /// A client waits quietly through the steps of its transfer. Once woken, it finds the end.
    #[test]
    fn a_client_is_woken_at_the_end_and_not_before() {
        let ends: [fn(&mut Active); 2] = [
            |active| active.reply(State::Committed, None, 5),
            // The worker stops.
            |active| drop(std::mem::replace(active, self::active(State::Init))),
        ];
        for end in ends {
            let mut active = active(State::SourcePending);
            let (quiet, mut woken) = oneshot::channel();
            active.quiet = Some(quiet);
            active.stored(transfer(1, State::TargetPending));
            active.row.state = State::TargetPending;
            assert_eq!(woken.try_recv(), Err(TryRecvError::Empty));
            end(&mut active);
            assert_eq!(woken.try_recv(), Err(TryRecvError::Closed));
        }
        let (mut active, (quiet, mut woken)) = (active(State::Committed), oneshot::channel());
        active.quiet = Some(quiet);
        active.finish();
        assert_eq!(woken.try_recv(), Err(TryRecvError::Closed));
    }

    #[test]
    fn the_code_in_the_store_is_kept_and_a_new_one_only_added() {
        let mut active = active(State::TargetPending);
        let reader = active.progress();
        let refused = Some(Code::AccountDisabled);
        active.stored(Transfer { code: refused, ..transfer(1, State::Compensating) });
        active.row.state = State::Compensating;
        active.reply(State::RolledBack, Some(Code::AccountFrozen), 5);
        assert_eq!(reader.borrow().code, refused);
        assert_eq!(active.transfer().code, refused);
    }
}
