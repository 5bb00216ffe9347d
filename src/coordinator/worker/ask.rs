//! Questions to the participants outside the store, and their answers.
//!
//! One question covers everything that one participant is ready to be asked. While the service is
//! halted, the participants are only asked for their records.

use std::sync::Arc;

use futures_util::future::join_all;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, debug_span};

use super::{Asking, Told, Worker};
use crate::adapters::{Adapter, Answer, Ask, Outcome, Reason};
use crate::alert::{Alert, alert_about};
use crate::coordinator::parts::Parts;
use crate::coordinator::step::Happened;
use crate::crash;
use crate::telemetry;
use domain::transfer::{Op, Participant, ReqId};

/// Records that UBSCore is asked for at once.
const LOOKUPS_AT_ONCE: usize = 64;

/// An operation that a participant is asked for or, while halted, is looked up at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) req_id: ReqId,
    pub(super) participant: Participant,
    pub(super) op: Op,
    /// The participant records a refusal, unless it has decided.
    pub(super) refuse: bool,
}

/// Questions with their answers.
pub(super) type Answers = Vec<(Question, Answer)>;

/// The questions that are not asked yet.
#[derive(Debug, Default)]
pub(super) struct Questions(Vec<Question>);

impl Questions {
    pub(super) fn push(&mut self, question: Question) {
        self.0.push(question);
    }

    /// All questions of the same kind as the oldest one, oldest first; empty if there are none.
    fn take_alike(&mut self) -> Vec<Question> {
        let kind = |question: &Question| (question.participant, question.refuse);
        let Some(first) = self.0.first().map(kind) else { return Vec::new() };
        let (alike, later) =
            std::mem::take(&mut self.0).into_iter().partition(|question| kind(question) == first);
        self.0 = later;
        alike
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Asks one participant. Questions of another kind have their turn next.
    pub(super) fn ask(&mut self) -> Option<Asking> {
        let mut questions = self.questions.take_alike();
        let Question { participant, refuse, .. } = *questions.first()?;
        questions.retain(|question| self.active.contains_key(&question.req_id));
        let parts = Arc::clone(&self.parts);
        let Some(pass) = parts.gate.pass() else {
            return Some(Box::pin(async { Told::Answers(look_up(parts, questions).await) }));
        };
        let ask = |question: &Question| {
            let intent = self.active[&question.req_id].intent();
            Ask { op: question.op, intent }
        };
        let asks: Vec<Ask> = questions.iter().map(ask).collect();
        let together = debug_span!(parent: None, "ask", asks = questions.len(), refuse);
        let mut orders = Vec::with_capacity(questions.len());
        for question in &questions {
            let order = self.order_span(question);
            together.follows_from(&order);
            orders.push(order);
        }
        Some(Box::pin(async move {
            let _moving = pass;
            crash::point("coordinator_before_ask");
            let began = parts.clock.monotonic_ns();
            let answers = async {
                match (participant, refuse) {
                    (Participant::Spot, false) => parts.spot.ask(asks).await,
                    (Participant::Spot, true) => parts.spot.refuse(asks).await,
                    (Participant::Funding, false) => parts.funding.ask(asks).await,
                    (Participant::Funding, true) => parts.funding.refuse(asks).await,
                }
            };
            let answers: Vec<Answer> = answers.instrument(together).await;
            assert_eq!(answers.len(), questions.len(), "answers for questions");
            for (order, answer) in orders.into_iter().zip(&answers) {
                order.record("outcome", answer.outcome.name());
                order.record("log_sequence", answer.log_sequence);
            }
            let step = match participant {
                Participant::Spot => telemetry::Step::Spot,
                Participant::Funding => telemetry::Step::Funding,
            };
            telemetry::step(step, parts.clock.monotonic_ns() - began);
            crash::point("coordinator_after_ask");
            Told::Answers(questions.into_iter().zip(answers).collect())
        }))
    }

    /// The span of one operation at a participant. It ends with the answer, because the threads of
    /// UBSCore trace nothing.
    fn order_span(&self, question: &Question) -> Span {
        let Question { req_id, participant, op, .. } = question;
        let transfer = &self.active[req_id].span;
        match participant {
            Participant::Spot => debug_span!(
                parent: transfer, "engine", op = op.name(), outcome = Empty, log_sequence = Empty
            ),
            Participant::Funding => debug_span!(
                parent: transfer, "funding", op = op.name(), outcome = Empty, log_sequence = Empty
            ),
        }
    }

    /// A participant has answered for a transfer.
    pub(super) fn on_answer(&mut self, Question { req_id, op, .. }: Question, answer: Answer) {
        let outcome = answer.outcome;
        let span = self.active.get(&req_id).map_or_else(Span::none, |active| active.span.clone());
        let _entered = span.entered();
        debug!(%req_id, op = op.name(), outcome = outcome.name(), "UBSCore answered");
        if let Some(user) = self.active.get(&req_id).map(|active| active.user()) {
            self.note_moved(user);
        }
        if let Outcome::Unknown(Reason::Violation | Reason::Forgotten) = outcome {
            let what = format_args!("UBSCore: {} of {req_id}", op.name());
            alert_about(Alert::ProtocolViolation, &req_id, what);
        }
        if outcome.decision().is_none() {
            let text = format!("UBSCore did not decide {}: {}", op.name(), outcome.name());
            self.note(req_id, outcome.name(), None, text);
        }
        self.advance(req_id, Happened::Answered(op, answer));
    }
}

/// The recorded outcomes of operations. The participants are asked for nothing else.
async fn look_up<T: Adapter, F: Adapter>(
    parts: Arc<Parts<T, F>>,
    questions: Vec<Question>,
) -> Answers {
    let mut answers = Vec::with_capacity(questions.len());
    for together in questions.chunks(LOOKUPS_AT_ONCE) {
        let look = |question: &Question| {
            let (parts, Question { req_id, participant, op, .. }) = (Arc::clone(&parts), *question);
            async move {
                match participant {
                    Participant::Spot => parts.spot.query(req_id, op).await,
                    Participant::Funding => parts.funding.query(req_id, op).await,
                }
            }
        };
        answers.extend(join_all(together.iter().map(look)).await);
    }
    questions.into_iter().zip(answers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(number: u128, participant: Participant, refuse: bool) -> Question {
        let req_id = ReqId::new(number).expect("not zero");
        Question { req_id, participant, op: Op::Deposit, refuse }
    }

    /// A question covers one participant, and either asks or has refused. The oldest kind comes
    /// first, and no question is lost.
    #[test]
    fn questions_of_one_kind_go_together_oldest_kind_first() {
        use Participant::{Funding, Spot};
        let all = [
            question(1, Spot, false),
            question(2, Spot, true),
            question(3, Funding, false),
            question(4, Spot, false),
            question(5, Spot, true),
        ];
        let mut questions = Questions::default();
        all.into_iter().for_each(|question| questions.push(question));
        let mut take = || questions.take_alike();
        assert_eq!(take(), [all[0], all[3]]);
        assert_eq!(take(), [all[1], all[4]]);
        assert_eq!(take(), [all[2]]);
        assert_eq!(take(), []);
    }
}
