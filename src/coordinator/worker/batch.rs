//! The calls of one commit, and the result of the commit for each of them.

use std::error::Error;

use super::queue::{Queued, Ticket};
use super::reply::ReplyTo;
use crate::postgres::store::{Call, Failure, Reply};

/// A call of a commit.
pub(super) struct Member {
    pub(super) queued: Queued,
    /// The call that the store gets instead, such as a search while the service is halted.
    pub(super) instead: Option<Call>,
}

/// The calls of one commit, in the order of the queue. Reads are answered behind the commit,
/// wherever they stand.
pub(super) struct Batch {
    pub(super) calls: Vec<Call>,
    /// For each call its ticket and, if the store gets another call instead, the queued one.
    pub(super) rest: Vec<(Ticket, Option<Call>)>,
}

impl Batch {
    pub(super) fn new(members: Vec<Member>) -> Batch {
        let split = |Member { queued: Queued { call, ticket }, instead }| match instead {
            Some(instead) => (instead, (ticket, Some(call))),
            None => (call, (ticket, None)),
        };
        let (calls, rest) = members.into_iter().map(split).unzip();
        Batch { calls, rest }
    }

    /// The calls as they were queued.
    fn into_queued(self) -> Vec<Queued> {
        let join = |(sent, (ticket, queued)): (Call, (Ticket, Option<Call>))| Queued {
            call: queued.unwrap_or(sent),
            ticket,
        };
        self.calls.into_iter().zip(self.rest).map(join).collect()
    }
}

type Source = Box<dyn Error + Send + Sync>;

/// The result of a commit.
pub(super) enum CommitEnd {
    Committed(Vec<(Queued, Reply)>),
    /// Nothing happened. The store refuses one call; the others go back.
    Refused {
        blamed: Queued,
        others: Vec<Queued>,
        violation: bool,
        source: Source,
    },
    /// Nothing happened. The store refuses some call and cannot name it; all go back.
    Split {
        batch: Vec<Queued>,
        source: Source,
    },
    /// Nothing happened. Some calls are blocked; the others go back.
    Blocked {
        blamed: Vec<Queued>,
        /// Whether others have changed their rows.
        changed: bool,
        others: Vec<Queued>,
        source: Source,
    },
    /// The commit has failed as a whole.
    Failed {
        batch: Vec<Queued>,
        failure: Failure,
    },
}

impl CommitEnd {
    pub(super) fn of(batch: Batch, result: Result<Vec<Reply>, Failure>) -> CommitEnd {
        let mut batch = batch.into_queued();
        match result {
            Ok(replies) => {
                assert_eq!(replies.len(), batch.len(), "replies for calls");
                CommitEnd::Committed(batch.into_iter().zip(replies).collect())
            }
            Err(Failure::Refused { index, violation, source }) => {
                let blamed = batch.remove(index);
                CommitEnd::Refused { blamed, others: batch, violation, source }
            }
            Err(Failure::Split(source)) => CommitEnd::Split { batch, source },
            Err(Failure::Blocked { indices, changed, source }) => {
                assert!(!indices.is_empty() && indices.is_sorted(), "{indices:?}");
                let mut place = 0..;
                let is_blamed = |_: &Queued| place.next().is_some_and(|p| indices.contains(&p));
                let (blamed, others) = batch.into_iter().partition(is_blamed);
                CommitEnd::Blocked { blamed, changed, others, source }
            }
            Err(failure) => CommitEnd::Failed { batch, failure },
        }
    }
}

/// The next action on a call after its commit has failed as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Commit it again, before later calls.
    Commit,
    /// Answer its caller. It is not committed again.
    GiveUp,
    /// Forget it.
    Drop,
}

impl Again {
    /// Decides, and notes in the ticket if the call may have been carried out.
    pub(super) fn after(ticket: &mut Ticket, failure: &Failure, now: u64) -> Again {
        ticket.maybe |= matches!(failure, Failure::Unknown(_));
        let unreachable = matches!(failure, Failure::Unreachable(_));
        // If the store is unreachable, the call will not be begun soon. A call that may have been
        // begun is repeated while its caller waits.
        let hopeless = now >= ticket.deadline_ns || (unreachable && !ticket.maybe);
        match ticket.reply_to {
            _ if hopeless && ticket.reply_to.is_caller() => Again::GiveUp,
            // The timer of a deferral runs all the same.
            ReplyTo::Nothing => Again::Drop,
            _ => Again::Commit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::active::tests::transfer;
    use super::super::reply::Caller;
    use super::*;
    use crate::postgres::store::{Sought, TransitionPath};
    use domain::transfer::{ReqId, State};

    fn req_id(number: u128) -> ReqId {
        ReqId::new(number).expect("not zero")
    }

    fn search(number: u128) -> Queued {
        Queued::own(Call::Find(Sought::ReqId(req_id(number))), ReplyTo::LostAccept(1))
    }

    fn step(number: u64) -> Queued {
        let transfer = Box::new(transfer(number, State::SourceDone));
        let transition = TransitionPath { path: vec![State::TargetPending], funding: None };
        let call = Call::Step { transfer, transition, code: None, log_sequence: None, attempt: 0 };
        Queued::own(call, ReplyTo::Transfer)
    }

    fn batch(queued: impl IntoIterator<Item = Queued>) -> Batch {
        Batch::new(queued.into_iter().map(|queued| Member { queued, instead: None }).collect())
    }

    fn names(batch: &[Queued]) -> Vec<u128> {
        batch.iter().map(|queued| queued.call.req_id().expect("a name").number()).collect()
    }

    /// If the store gets another call instead, the queued call comes back.
    #[test]
    fn a_batch_keeps_its_order_and_returns_its_calls_as_they_were_queued() {
        let members = [(search(1), None), (step(2), None), (step(3), Some(req_id(3)))];
        let members = members.map(|(queued, instead)| {
            let instead = instead.map(|name| Call::Find(Sought::ReqId(name)));
            Member { queued, instead }
        });
        let batch = Batch::new(members.into());
        let sent: Vec<_> = batch.calls.iter().map(Call::name).collect();
        assert_eq!(sent, ["find", "step", "find"]);
        let queued = batch.into_queued();
        assert_eq!(names(&queued), [1, 2, 3]);
        assert_eq!(queued[2].call, step(3).call);
        assert!(matches!(queued[0].ticket.reply_to, ReplyTo::LostAccept(1)));
    }

    #[test]
    fn a_blamed_call_is_taken_out_and_the_others_keep_their_order() {
        let calls = || batch([step(1), step(2), step(3)]);
        let source = || -> Source { "a reason".into() };
        let refused = Failure::Refused { index: 1, violation: true, source: source() };
        let CommitEnd::Refused { blamed, others, violation: true, .. } =
            CommitEnd::of(calls(), Err(refused))
        else {
            panic!("refused")
        };
        assert_eq!((names(&[blamed]), names(&others)), (vec![2], vec![1, 3]));
        let indices = vec![0, 2];
        let blocked = Failure::Blocked { indices, changed: false, source: source() };
        let CommitEnd::Blocked { blamed, others, .. } = CommitEnd::of(calls(), Err(blocked)) else {
            panic!("blocked")
        };
        assert_eq!((names(&blamed), names(&others)), (vec![1, 3], vec![2]));
        let retry = Failure::Retry(source());
        let whole = CommitEnd::of(calls(), Err(retry));
        assert!(matches!(whole, CommitEnd::Failed { batch, .. } if names(&batch) == [1, 2, 3]));
        let replies = vec![Reply::Done, Reply::Found(None), Reply::Done];
        let CommitEnd::Committed(done) = CommitEnd::of(calls(), Ok(replies)) else {
            panic!("committed")
        };
        assert_eq!(done[1].0.call, step(2).call);
        assert_eq!(done[1].1, Reply::Found(None));
    }

    /// A caller is answered once its wait is over, or if the store cannot be reached and nothing
    /// was begun. A call that may have been carried out stays marked so. The worker's own calls are
    /// repeated without an end.
    #[test]
    fn a_call_is_repeated_while_its_caller_waits() {
        let source = || -> Source { "a reason".into() };
        let unknown = || Failure::Unknown(source());
        let unreachable = || Failure::Unreachable(source());
        let retry = || Failure::Retry(source());
        for (failure, maybe, now, want) in [
            (retry(), false, 9, (Again::Commit, false)),
            (retry(), false, 10, (Again::GiveUp, false)),
            (retry(), true, 10, (Again::GiveUp, true)),
            (unknown(), false, 9, (Again::Commit, true)),
            (unknown(), false, 10, (Again::GiveUp, true)),
            (unreachable(), false, 9, (Again::GiveUp, false)),
            (unreachable(), true, 9, (Again::Commit, true)),
        ] {
            let mut ticket = search(1).ticket;
            (ticket.reply_to, ticket.deadline_ns) = (ReplyTo::Store(Caller::new().0), 10);
            ticket.maybe = maybe;
            let again = Again::after(&mut ticket, &failure, now);
            assert_eq!((again, ticket.maybe), want, "{failure:?} {maybe} {now}");
        }
        for failure in [retry(), unknown(), unreachable()] {
            assert_eq!(Again::after(&mut step(1).ticket, &failure, 99), Again::Commit);
            let mut deferral = Queued::own(step(1).call, ReplyTo::Nothing);
            assert_eq!(Again::after(&mut deferral.ticket, &failure, 99), Again::Drop);
        }
    }
}
