//! The line of one worker to the model of PostgreSQL. A flight may find no connection, be lost, be
//! carried out without an answer or long behind the process's patience, also when its process is
//! dead by then.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use ubscore::postgres::flight::{Flight, Found, Journal, Last, Stopped, Wanted};
use ubscore::postgres::store::{Failure, Page, Unfinished};

use super::world::Sim;

/// For so long a flight is waited for.
const FLIGHT_LIMIT: Duration = Duration::from_millis(900);

/// See the head of this file.
pub(super) struct Line {
    sim: Arc<Sim>,
    incarnation: u64,
    shard: u32,
}

/// The fate of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlightFate {
    Arrives,
    NoConnection,
    Locked,
    Lost,
    AnswerLost,
    Late,
}

impl Line {
    pub(super) fn new(sim: Arc<Sim>, incarnation: u64, shard: u32) -> Line {
        Line { sim, incarnation, shard }
    }

    fn fate(&self) -> FlightFate {
        use FlightFate::*;
        match self.sim.fails() {
            false => Arrives,
            true => self.sim.pick(&[
                NoConnection,
                Locked,
                Lost,
                AnswerLost,
                AnswerLost,
                AnswerLost,
                Late,
            ]),
        }
    }
}

impl Journal for Line {
    async fn last(&mut self) -> Result<Option<Last>, Failure> {
        self.sim.sleep_ms(0, 5).await;
        if self.sim.fails() {
            return Err(Failure::Unreachable("no connection".into()));
        }
        Ok(self.sim.state.lock().tables.last(self.incarnation, self.shard))
    }

    async fn fly(&mut self, flight: &Flight) -> Result<(), Stopped> {
        let fate = self.fate();
        if fate == FlightFate::NoConnection {
            self.sim.sleep_ms(0, 50).await;
            return Err(Stopped::Unreachable("no connection".into()));
        }
        if fate == FlightFate::Locked {
            self.sim.sleep_ms(0, 50).await;
            return Err(Stopped::Blocked("a lock".into()));
        }
        if fate != FlightFate::Arrives {
            self.sim.state.lock().judge.note("unknown commits");
        }
        let (answer, answered) = oneshot::channel();
        let (sim, incarnation, shard) = (Arc::clone(&self.sim), self.incarnation, self.shard);
        let flight = flight.clone();
        self.sim.spawn(async move {
            match fate {
                FlightFate::Late => sim.sleep_ms(500, 4_000).await,
                _ => sim.sleep_ms(0, 20).await,
            }
            if fate != FlightFate::Lost {
                let done = sim.fly(incarnation, shard, &flight);
                sim.sleep_ms(0, 10).await;
                if fate != FlightFate::AnswerLost {
                    drop(answer.send(done));
                }
            }
        });
        let patience = self.sim.time.sleep(FLIGHT_LIMIT);
        tokio::select! {
            biased;
            done = answered => match done {
                Ok(done) => done,
                Err(_) => Err(Stopped::Unknown("the connection ended".into())),
            },
            () = patience => Err(Stopped::Unknown("no answer".into())),
        }
    }

    async fn read(&mut self, wanted: &Wanted) -> Result<Found, Failure> {
        self.sim.sleep_ms(0, 15).await;
        if self.sim.fails() {
            return Err(Failure::Unreachable("no connection".into()));
        }
        let found = self.sim.state.lock().tables.read(wanted, self.sim.planted);
        // Another worker may write meanwhile.
        self.sim.sleep_ms(0, 5).await;
        Ok(found)
    }

    async fn unfinished(&mut self, _filter: Unfinished) -> Result<Page, Failure> {
        Ok(Page::default())
    }
}
