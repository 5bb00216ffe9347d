//! The next step of a transfer: [`decide`] turns its state and an event into the new state and the
//! actions that follow. No I/O, no clock. Normal run, recovery and simulation all use it.
//!
//! With fusion a commit takes a transfer as far as possible without asking a participant outside
//! PostgreSQL. Without it, each transition is a commit of its own. Both are the same loop over the
//! one table in [`domain::transfer`].

use crate::adapters::{Answer, Route};
use crate::postgres::store::{FundingPart, TransitionPath};
use domain::code::Code;
use domain::transfer::{Decision, Direction, Duty, Event, Op, Participant, State};

/// The part of a transfer that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The direction.
    pub direction: Direction,
    /// The state in the store.
    pub state: State,
    /// Tries of this state that ended unknown.
    pub attempt: u32,
    /// Whether transitions share commits.
    pub fuse: bool,
    /// An operator ends the wait: an undecided payment or credit is to be refused.
    pub resolve: bool,
}

/// An event of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A client asked for it; no store has it yet.
    Submitted,
    /// The store has it in this state.
    Stored(State),
    /// Time to go on: after a start, or after a back-off.
    Due,
    /// A participant outside the store answered.
    Answered(Op, Answer),
    /// The store refused to commit its last transition path. Nothing was moved.
    Refused,
    /// An operator ends the wait for a decision, or withdraws that. A call under way goes on; the
    /// next one is to be refused.
    Resolve(bool),
}

/// An action that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Insert it and take it along this path.
    Accept(TransitionPath),
    /// Take it along this path.
    Step {
        /// The states, and Funding's part.
        transition: TransitionPath,
        /// The code of the participant's refusal.
        code: Option<Code>,
        /// The participant's record.
        log_sequence: Option<wal::Sequence>,
    },
    /// Ask the participant outside the store. The intent to ask is durable.
    Ask(Participant, Op),
    /// Let the participant outside the store record a refusal, unless it has decided, and return
    /// its record. The intent to ask is durable.
    Refuse(Participant, Op),
    /// Its final state is proven by UBSCore's record and survives any crash. The client may get its
    /// answer.
    Reply(State, Option<Code>),
    /// The outcome is unknown. Ask again later, without an end.
    Retry,
    /// It is terminal in the store.
    Finish,
    /// Read the record of the participant outside the store, and ask it for nothing.
    LookUp(Participant, Op),
    /// Do nothing until the service is resumed. Then it is due.
    Rest,
}

/// Decides. `route`: how each participant is asked.
pub fn decide(
    row: Row,
    happened: Happened,
    route: impl Fn(Participant) -> Route,
) -> (Row, Vec<Effect>) {
    match happened {
        Happened::Submitted => {
            assert_eq!(row.state, State::Init, "{row:?} is accepted a second time");
            let transition = transition(vec![State::Init], row, &route);
            (row, vec![Effect::Accept(transition)])
        }
        Happened::Stored(state) => {
            let row = Row { state, attempt: 0, ..row };
            (row, vec![go_on(row, &route)])
        }
        Happened::Due => (row, vec![go_on(row, &route)]),
        Happened::Refused => {
            // The next tries take one transition at a time, to get as far as possible.
            let row = Row { fuse: false, attempt: row.attempt.saturating_add(1), ..row };
            (row, vec![Effect::Retry])
        }
        Happened::Answered(op, answer) => answered(row, op, answer, &route),
        Happened::Resolve(wanted) => {
            (Row { resolve: wanted && row.state.awaits_decision(), ..row }, Vec::new())
        }
    }
}

/// Updates a path that waits for its commit, because an operator may have begun or ended a resolve
/// since.
pub fn renew(row: Row, transition: &mut TransitionPath) {
    if let Some(part) = &mut transition.funding {
        part.refuse = is_refused(row, part.op);
    }
}

/// Whether an operator can end the wait for this operation: a refund cannot be refused.
fn is_refused(row: Row, op: Op) -> bool {
    row.resolve && op.row().refusable
}

/// Reduces an effect while the service is halted: the one place that decides how far a transfer
/// still goes.
///
/// An outcome that UBSCore has recorded is durable, and writing it to PostgreSQL moves no money. So
/// it is written: one transition, without fusion. No intent is persisted and no participant is
/// asked. Funding is not touched, because its operations share the transaction of their state
/// change. By state, in both directions:
///
/// | state | halted |
/// |---|---|
/// | INIT, SOURCE_DONE | rests |
/// | SOURCE_PENDING, asks Funding | rests |
/// | SOURCE_PENDING, asks UBSCore | rests, unless recorded: SOURCE_DONE or FAILED, and rests |
/// | TARGET_PENDING, asks UBSCore | rests, unless recorded: COMMITTED, or COMPENSATING and rests |
/// | TARGET_PENDING, asks Funding | rests |
/// | COMPENSATING, asks Funding | rests |
/// | COMPENSATING, asks UBSCore | rests, unless recorded: ROLLED_BACK |
/// | terminal | has ended |
pub fn restrain(row: Row, effect: Effect, route: impl Fn(Participant) -> Route) -> Effect {
    match effect {
        Effect::Accept(_) => Effect::Rest,
        Effect::Step { transition, code, log_sequence } => match row.state.duty(row.direction) {
            // Only a decision leads out of this state, and UBSCore's is durable before it is
            // answered.
            Duty::Ask(participant, _) if route(participant) == Route::Apart => {
                let path: Vec<State> = transition.path.into_iter().take(1).collect();
                assert_eq!(path.len(), 1, "{row:?}: a decision without its state");
                Effect::Step {
                    transition: TransitionPath { path, funding: None },
                    code,
                    log_sequence,
                }
            }
            Duty::Ask(..) | Duty::Proceed | Duty::Nothing => Effect::Rest,
        },
        Effect::Ask(participant, op) | Effect::Refuse(participant, op) => {
            Effect::LookUp(participant, op)
        }
        Effect::Retry => Effect::Rest,
        Effect::Reply(..) | Effect::Finish | Effect::LookUp(..) | Effect::Rest => effect,
    }
}

fn answered(
    row: Row,
    op: Op,
    answer: Answer,
    route: &impl Fn(Participant) -> Route,
) -> (Row, Vec<Effect>) {
    // An answer to a question of an earlier state does not apply to this one.
    if !matches!(row.state.duty(row.direction), Duty::Ask(_, asked) if asked == op) {
        return (row, Vec::new());
    }
    let moved = answer
        .outcome
        .decision()
        .and_then(|decision| row.state.next(decision.event()).map(|state| (decision, state)));
    let Some((decision, state)) = moved else {
        let row = Row { attempt: row.attempt.saturating_add(1), ..row };
        return (row, vec![Effect::Retry]);
    };
    let code = match decision {
        Decision::Success => None,
        Decision::Refused(code) => Some(code),
    };
    let transition = transition(vec![state], row, route);
    let step = Effect::Step { transition, code, log_sequence: answer.log_sequence };
    let proven = state.is_terminal() && answer.log_sequence.is_some();
    match proven {
        true => (row, vec![Effect::Reply(state, code), step]),
        false => (row, vec![step]),
    }
}

/// The action that the present state needs.
fn go_on(row: Row, route: &impl Fn(Participant) -> Route) -> Effect {
    match row.state.duty(row.direction) {
        Duty::Nothing => Effect::Finish,
        Duty::Ask(participant, op) if route(participant) == Route::Apart => {
            match is_refused(row, op) {
                true => Effect::Refuse(participant, op),
                false => Effect::Ask(participant, op),
            }
        }
        Duty::Ask(..) | Duty::Proceed => {
            let transition = transition(Vec::new(), row, route);
            Effect::Step { transition, code: None, log_sequence: None }
        }
    }
}

/// The path of one commit: as far as it takes a transfer that has passed the states of `path`.
fn transition(
    mut path: Vec<State>,
    row: Row,
    route: &impl Fn(Participant) -> Route,
) -> TransitionPath {
    let mut state = path.last().copied().unwrap_or(row.state);
    while row.fuse || path.is_empty() {
        match state.duty(row.direction) {
            Duty::Proceed => {
                state = state.next(Event::Proceed).expect("the table admits the duty");
                path.push(state);
            }
            Duty::Ask(participant, op) if route(participant) == Route::Together => {
                let after = |event| outcome_path(state, event, row.fuse);
                let (on_success, on_refused) = (after(Event::Success), after(Event::ExplicitFail));
                assert!(
                    !on_success.is_empty(),
                    "{state:?} asks for {}, without a way on",
                    op.name()
                );
                let refuse = is_refused(row, op);
                let funding = Some(FundingPart { op, on_success, on_refused, refuse });
                return TransitionPath { path, funding };
            }
            Duty::Ask(..) | Duty::Nothing => break,
        }
    }
    assert!(!path.is_empty(), "{row:?}: a commit without a state");
    TransitionPath { path, funding: None }
}

/// The states after a participant's decision, until another participant must be asked; empty if the
/// table does not admit the decision.
fn outcome_path(state: State, event: Event, fuse: bool) -> Vec<State> {
    let mut path: Vec<State> = state.next(event).into_iter().collect();
    while let Some(next) = path.last().and_then(|last| last.next(Event::Proceed))
        && fuse
    {
        path.push(next);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::{Outcome, Reason};
    use State::*;

    fn production(participant: Participant) -> Route {
        match participant {
            Participant::Funding => Route::Together,
            Participant::Spot => Route::Apart,
        }
    }

    fn row(direction: Direction, state: State, fuse: bool) -> Row {
        Row { direction, state, attempt: 0, fuse, resolve: false }
    }

    fn answer(outcome: Outcome) -> Answer {
        Answer { outcome, log_sequence: Some(9) }
    }

    /// Plays a whole transfer in which the participants refuse the operations in `refuse`; returns
    /// the states of each commit.
    fn play(direction: Direction, fuse: bool, refuse: &[(Participant, Op)]) -> Vec<Vec<State>> {
        let mut commits = Vec::new();
        let mut now = row(direction, Init, fuse);
        let mut happened = Happened::Submitted;
        loop {
            let (next, effects) = decide(now, happened, production);
            now = next;
            let effect = effects.into_iter().next_back().expect("something to do");
            happened = match effect {
                Effect::Accept(transition) | Effect::Step { transition, .. } => {
                    let mut states = transition.path;
                    if let Some(part) = transition.funding {
                        let refused = refuse.contains(&(Participant::Funding, part.op));
                        states.extend(if refused { part.on_refused } else { part.on_success });
                    }
                    let last = *states.last().expect("moves");
                    commits.push(states);
                    assert!(commits.len() <= State::ALL.len(), "it never ends: {commits:?}");
                    Happened::Stored(last)
                }
                Effect::Ask(_, op) => {
                    let refused = refuse.contains(&(Participant::Spot, op));
                    let refusal = Outcome::ExplicitFail(Code::AccountDisabled);
                    let outcome = if refused { refusal } else { Outcome::Success };
                    Happened::Answered(op, answer(outcome))
                }
                Effect::Finish => return commits,
                Effect::Reply(..)
                | Effect::Retry
                | Effect::LookUp(..)
                | Effect::Refuse(..)
                | Effect::Rest => panic!("{effect:?}"),
            };
        }
    }

    #[test]
    fn fused_paths_are_those_of_the_specification() {
        use Direction::*;
        use Participant::*;
        type Case = (Direction, &'static [(Participant, Op)], Vec<Vec<State>>);
        let cases: [Case; 6] = [
            (
                FundingToSpot,
                &[],
                vec![vec![Init, SourcePending, SourceDone, TargetPending], vec![Committed]],
            ),
            (FundingToSpot, &[(Funding, Op::Withdraw)], vec![vec![Init, SourcePending, Failed]]),
            (
                FundingToSpot,
                &[(Spot, Op::Deposit)],
                vec![
                    vec![Init, SourcePending, SourceDone, TargetPending],
                    vec![Compensating, RolledBack],
                ],
            ),
            (
                SpotToFunding,
                &[],
                vec![vec![Init, SourcePending], vec![SourceDone, TargetPending, Committed]],
            ),
            (SpotToFunding, &[(Spot, Op::Withdraw)], vec![vec![Init, SourcePending], vec![Failed]]),
            (
                SpotToFunding,
                &[(Funding, Op::Deposit)],
                vec![
                    vec![Init, SourcePending],
                    vec![SourceDone, TargetPending, Compensating],
                    vec![RolledBack],
                ],
            ),
        ];
        for (direction, refuse, want) in cases {
            assert_eq!(play(direction, true, refuse), want, "{direction:?} {refuse:?}");
            // Without fusion: the same states, one a commit.
            let single: Vec<Vec<State>> =
                want.into_iter().flatten().map(|state| vec![state]).collect();
            assert_eq!(play(direction, false, refuse), single, "{direction:?} {refuse:?}");
        }
    }

    #[test]
    fn whatever_is_not_a_decision_moves_nothing() {
        let unknown = [
            Outcome::Timeout,
            Outcome::Pending,
            Outcome::NetworkError,
            Outcome::Unknown(Reason::Violation),
        ];
        for direction in Direction::ALL {
            for state in State::ALL {
                for op in [Op::Withdraw, Op::Deposit, Op::Refund] {
                    for outcome in unknown {
                        let before = row(direction, state, true);
                        let happened = Happened::Answered(op, answer(outcome));
                        let (after, effects) = decide(before, happened, production);
                        assert_eq!(after.state, state);
                        assert!(effects.iter().all(|effect| *effect == Effect::Retry));
                    }
                }
            }
        }
    }

    #[test]
    fn a_refused_refund_is_unknown_and_an_answer_to_another_question_is_none() {
        let compensating = row(Direction::SpotToFunding, Compensating, true);
        let refusal = answer(Outcome::ExplicitFail(Code::AccountDisabled));
        let (after, effects) =
            decide(compensating, Happened::Answered(Op::Refund, refusal), production);
        assert_eq!((after.state, effects), (Compensating, vec![Effect::Retry]));
        let late = Happened::Answered(Op::Withdraw, answer(Outcome::Success));
        assert_eq!(decide(compensating, late, production).1, vec![]);
    }

    /// Goal: while halted only decisions of UBSCore are recorded, one state at a time. Method:
    /// every state in both directions, fused and not: the due action and the effect of each
    /// decision, against the table.
    #[test]
    fn a_halted_service_records_what_is_decided_and_nothing_else() {
        use Direction::*;
        let refusal = Outcome::ExplicitFail(Code::AccountDisabled);
        for fuse in [true, false] {
            for direction in Direction::ALL {
                for state in State::ALL {
                    let now = row(direction, state, fuse);
                    let halted = |happened| -> Vec<Effect> {
                        let (_, effects) = decide(now, happened, production);
                        effects.into_iter().map(|e| restrain(now, e, production)).collect()
                    };
                    let lookup = |op| vec![Effect::LookUp(Participant::Spot, op)];
                    let (due, op, after) = match (state, direction) {
                        (Init | SourceDone, _)
                        | (SourcePending | Compensating, FundingToSpot)
                        | (TargetPending, SpotToFunding) => (vec![Effect::Rest], None, [None; 2]),
                        (SourcePending, SpotToFunding) => {
                            let op = Op::Withdraw;
                            (lookup(op), Some(op), [Some(SourceDone), Some(Failed)])
                        }
                        (TargetPending, FundingToSpot) => {
                            let op = Op::Deposit;
                            (lookup(op), Some(op), [Some(Committed), Some(Compensating)])
                        }
                        (Compensating, SpotToFunding) => {
                            let op = Op::Refund;
                            (lookup(op), Some(op), [Some(RolledBack), None])
                        }
                        (Committed | Failed | RolledBack, _) => {
                            (vec![Effect::Finish], None, [None; 2])
                        }
                    };
                    assert_eq!(halted(Happened::Due), due, "{direction:?} {state:?}");
                    assert_eq!(halted(Happened::Stored(state)), due, "{direction:?} {state:?}");
                    let Some(op) = op else { continue };
                    for (outcome, after) in [Outcome::Success, refusal].into_iter().zip(after) {
                        let effects = halted(Happened::Answered(op, answer(outcome)));
                        let last = effects.last().expect("something to do");
                        match (after, last) {
                            (Some(after), Effect::Step { transition, log_sequence, .. }) => {
                                let want = TransitionPath { path: vec![after], funding: None };
                                assert_eq!((transition, *log_sequence), (&want, Some(9)));
                            }
                            // A refund cannot be refused.
                            (None, Effect::Rest) => {}
                            _ => panic!("{direction:?} {state:?} {outcome:?}: {effects:?}"),
                        }
                    }
                    let unknown = answer(Outcome::Unknown(Reason::NotRecorded));
                    assert_eq!(halted(Happened::Answered(op, unknown)), vec![Effect::Rest]);
                }
                let new = decide(row(direction, Init, fuse), Happened::Submitted, production).1;
                for effect in new {
                    let now = row(direction, Init, fuse);
                    assert_eq!(restrain(now, effect, production), Effect::Rest);
                }
            }
        }
    }

    /// Goal: a transfer that an operator resolves ends FAILED or ROLLED_BACK, or COMMITTED if its
    /// target has decided so before, and a refund is never refused. Method: each state, in both
    /// directions, fused and not, with every set of decisions that the participants have recorded
    /// before. They answer by their records.
    #[test]
    fn a_resolved_transfer_ends_as_it_is_recorded_or_is_refused() {
        for (fuse, direction) in [
            (true, Direction::FundingToSpot),
            (true, Direction::SpotToFunding),
            (false, Direction::FundingToSpot),
            (false, Direction::SpotToFunding),
        ] {
            for start in [Init, SourcePending, SourceDone, TargetPending] {
                let paid = matches!(start, SourceDone | TargetPending);
                for known in [None, Some(true), Some(false)] {
                    let mut recorded = [paid.then_some(true), None, None];
                    recorded[usize::from(paid)] = known;
                    let (end, recorded) = resolve_to_the_end(direction, start, fuse, recorded);
                    let want = match (paid, known) {
                        (true, Some(true)) => (Committed, [Some(true), Some(true), None]),
                        (true, None | Some(false)) | (false, Some(true)) => {
                            (RolledBack, [Some(true), Some(false), Some(true)])
                        }
                        (false, None | Some(false)) => (Failed, [Some(false), None, None]),
                    };
                    let case = format!("{direction:?} {fuse} from {start:?}, {known:?}");
                    assert_eq!((end, recorded), want, "{case}");
                }
            }
            for state in [Compensating, Committed, Failed, RolledBack] {
                let now = row(direction, state, fuse);
                let resolved = decide(now, Happened::Resolve(true), production);
                assert_eq!(resolved, (now, vec![]), "nothing to resolve: {state:?}");
            }
        }
    }

    /// Plays a transfer from the resolve on. `recorded`: the decisions of the participants for
    /// WITHDRAW, DEPOSIT and REFUND, `true` for a success. Returns its end and the decisions
    /// recorded by then.
    fn resolve_to_the_end(
        direction: Direction,
        start: State,
        fuse: bool,
        mut recorded: [Option<bool>; 3],
    ) -> (State, [Option<bool>; 3]) {
        let undecided = row(direction, start, fuse);
        let (now, nothing) = decide(undecided, Happened::Resolve(true), production);
        assert_eq!((now.resolve, nothing), (true, vec![]));
        assert_eq!(decide(now, Happened::Resolve(false), production), (undecided, vec![]));
        let (mut now, mut effects) = decide(now, Happened::Due, production);
        loop {
            let place = |op: Op| usize::from(op as u8) - 1;
            let mut decided = |op, refuse: bool| -> bool {
                assert!(!refuse || op != Op::Refund, "a refund is never refused");
                assert!(refuse || op == Op::Refund, "asked for, and not refused: {op:?}");
                *recorded[place(op)].get_or_insert(!refuse)
            };
            let happened = match effects.pop().expect("something to do") {
                Effect::Step { mut transition, .. } => {
                    // Before the commit the operator may withdraw the resolve, and repeat it.
                    let decided_once = transition.clone();
                    renew(Row { resolve: false, ..now }, &mut transition);
                    assert!(!transition.refuses());
                    renew(now, &mut transition);
                    assert_eq!(transition, decided_once);
                    if let Some(part) = transition.funding {
                        let success = decided(part.op, part.refuse);
                        transition.path.extend(if success {
                            part.on_success
                        } else {
                            part.on_refused
                        });
                    }
                    Happened::Stored(*transition.path.last().expect("moves"))
                }
                asked @ (Effect::Refuse(_, op) | Effect::Ask(_, op)) => {
                    let outcome = match decided(op, matches!(asked, Effect::Refuse(..))) {
                        true => Outcome::Success,
                        false => Outcome::ExplicitFail(Code::ResolvedByOperator),
                    };
                    // The first answer is lost; the next try is the same.
                    let lost = Happened::Answered(op, answer(Outcome::Timeout));
                    let (later, retry) = decide(now, lost, production);
                    assert_eq!(retry, [Effect::Retry]);
                    assert_eq!(decide(later, Happened::Due, production).1, [asked]);
                    Happened::Answered(op, answer(outcome))
                }
                Effect::Finish => return (now.state, recorded),
                other => panic!("{other:?}"),
            };
            (now, effects) = decide(now, happened, production);
        }
    }

    /// Tries are counted per state, a refused commit ends fusion, and a client gets an end that
    /// UBSCore's record proves.
    #[test]
    fn tries_fusion_and_an_early_reply() {
        let tired = Row { attempt: 3, ..row(Direction::FundingToSpot, TargetPending, true) };
        let decide = |now, happened| decide(now, happened, production);
        let (after, _) = decide(tired, Happened::Stored(Compensating));
        assert_eq!(after, Row { state: Compensating, attempt: 0, ..tired });
        let (after, effects) = decide(tired, Happened::Refused);
        assert_eq!(after, Row { fuse: false, attempt: 4, ..tired });
        assert_eq!(effects, [Effect::Retry]);
        let (after, effects) =
            decide(tired, Happened::Answered(Op::Deposit, answer(Outcome::Timeout)));
        assert_eq!((after, effects), (Row { attempt: 4, ..tired }, vec![Effect::Retry]));
        let (after, effects) = decide(tired, Happened::Due);
        let ask = Effect::Ask(Participant::Spot, Op::Deposit);
        assert_eq!((after, effects), (tired, vec![ask]));

        let step = |state, code, log_sequence| Effect::Step {
            transition: TransitionPath { path: vec![state], funding: None },
            code,
            log_sequence,
        };
        let unlogged = Answer { log_sequence: None, ..answer(Outcome::Success) };
        let code = Code::AccountDisabled;
        let refusal = Outcome::ExplicitFail(code);
        let paying = row(Direction::SpotToFunding, SourcePending, false);
        for (now, op, answer, want) in [
            (
                tired,
                Op::Deposit,
                answer(Outcome::Success),
                vec![Effect::Reply(Committed, None), step(Committed, None, Some(9))],
            ),
            (tired, Op::Deposit, unlogged, vec![step(Committed, None, None)]),
            (paying, Op::Withdraw, answer(Outcome::Success), vec![step(SourceDone, None, Some(9))]),
            (
                paying,
                Op::Withdraw,
                answer(refusal),
                vec![Effect::Reply(Failed, Some(code)), step(Failed, Some(code), Some(9))],
            ),
        ] {
            let happened = Happened::Answered(op, answer);
            assert_eq!(decide(now, happened), (now, want), "{now:?} {op:?} {answer:?}");
        }
    }

    #[test]
    fn a_terminal_state_asks_for_nothing() {
        for state in [Committed, Failed, RolledBack] {
            let now = row(Direction::FundingToSpot, state, true);
            assert_eq!(decide(now, Happened::Due, production).1, vec![Effect::Finish]);
        }
    }
}
