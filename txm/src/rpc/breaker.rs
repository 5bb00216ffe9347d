//! The circuit breaker of an endpoint: after some failures in a row no question goes there for a
//! pause that grows, and then one question tries again.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open the breaker.
const FAILURES_MAX: u32 = 5;
/// The pause doubles at most so often. With a pause of 1 s at first: at most 16 s, so that an
/// endpoint that is back is used again soon.
const DOUBLINGS_MAX: u32 = 4;
/// An endpoint that answered with another hash than that of the bytes is not used for so long.
const LIAR_PAUSE: Duration = Duration::from_secs(600);

/// The state of one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    /// The first pause.
    pause: Duration,
    failures: u32,
    doublings: u32,
    /// No question before this time.
    shut_until: Option<Instant>,
    /// Neither questions nor sends before this time.
    lied_until: Option<Instant>,
}

impl Breaker {
    /// A closed one. `pause`: the first pause.
    pub fn new(pause: Duration) -> Breaker {
        Breaker { pause, failures: 0, doublings: 0, shut_until: None, lied_until: None }
    }

    /// Whether a question may go now. Behind a pause one question may, and the next ones only
    /// behind its answer or behind one more pause.
    pub fn admit(&mut self, now: Instant) -> bool {
        if self.is_liar(now) {
            return false;
        }
        match self.shut_until {
            Some(until) if now < until => false,
            Some(_) => {
                self.shut_until = Some(now + self.length());
                true
            }
            None => true,
        }
    }

    /// Whether the endpoint is set aside for an answer that was a lie. Sends leave it out as well.
    pub fn is_liar(&self, now: Instant) -> bool {
        self.lied_until.is_some_and(|until| now < until)
    }

    /// Whether it is open, also while one question tries.
    pub fn is_shut(&self) -> bool {
        self.shut_until.is_some()
    }

    /// The endpoint answered.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.doublings = 0;
        self.shut_until = None;
    }

    /// The endpoint did not answer.
    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX {
            self.shut_until = Some(now + self.length());
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }

    /// The endpoint lied.
    pub fn lied(&mut self, now: Instant) {
        self.lied_until = Some(now + LIAR_PAUSE);
    }

    fn length(&self) -> Duration {
        self.pause * 2_u32.pow(self.doublings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pause_grows_and_one_question_tries() {
        let second = Duration::from_secs(1);
        let mut breaker = Breaker::new(second);
        for _ in 1..FAILURES_MAX {
            breaker.failed(Instant::now());
            assert!(breaker.admit(Instant::now()));
        }
        breaker.failed(Instant::now());
        assert!(!breaker.admit(Instant::now()));
        tokio::time::advance(second).await;
        assert!(breaker.admit(Instant::now()), "one tries");
        assert!(!breaker.admit(Instant::now()), "the others wait for it");
        breaker.failed(Instant::now());
        tokio::time::advance(second).await;
        assert!(!breaker.admit(Instant::now()), "twice as long");
        tokio::time::advance(second).await;
        assert!(breaker.admit(Instant::now()));
        breaker.answered();
        assert!(breaker.admit(Instant::now()));
        for _ in 0..40 {
            breaker.failed(Instant::now());
        }
        tokio::time::advance(second * 16).await;
        assert!(breaker.admit(Instant::now()), "the pause is bounded");
    }

    #[tokio::test(start_paused = true)]
    async fn a_liar_is_set_aside_whether_it_answers_or_not() {
        let mut breaker = Breaker::new(Duration::from_secs(1));
        breaker.lied(Instant::now());
        breaker.answered();
        assert!(breaker.is_liar(Instant::now()) && !breaker.admit(Instant::now()));
        tokio::time::advance(LIAR_PAUSE).await;
        assert!(!breaker.is_liar(Instant::now()) && breaker.admit(Instant::now()));
    }
}
