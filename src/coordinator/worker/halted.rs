//! The work of a worker while the service is halted: the rest of its transfers that [`restrain`]
//! leaves, and reads instead of the callers' requests.

use super::Worker;
use super::batch::Member;
use super::queue::Queued;
use crate::adapters::Adapter;
use crate::coordinator::request::Rejection;
use crate::coordinator::route;
use crate::coordinator::step::{Effect, Row, restrain};
use crate::postgres::store::{Call, Sought};
use domain::code::Code;

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// The member of a commit that moves no money. A caller that wants to move money gets the
    /// earlier decision, or the answer that the service is halted.
    pub(super) fn restrained(&mut self, queued: Queued) -> Option<Member> {
        let instead = match &queued.call {
            Call::Accept { intent, .. } => match &intent.cid {
                Some(cid) => Some(Call::Find(Sought::Cid(intent.user, cid.clone()))),
                None if queued.ticket.maybe => Some(Call::Find(Sought::ReqId(intent.req_id))),
                None => {
                    self.reject(queued, Rejection::of(Code::ServiceHalted));
                    return None;
                }
            },
            Call::External(external) => Some(Call::FindExternal(external.clone())),
            Call::Hold(order) => Some(Call::FindHold(order.clone())),
            Call::Recharge(call) => Some(Call::FindRecharge(call.clone())),
            Call::Step { transfer, transition, code, log_sequence, attempt } => {
                let req_id = transfer.intent.req_id;
                let row = Row { state: transfer.state, ..self.active.get(&req_id)?.row };
                let (transition, code, log_sequence) = (transition.clone(), *code, *log_sequence);
                let whole = Effect::Step { transition, code, log_sequence };
                match restrain(row, whole, route::<T, F>) {
                    Effect::Step { transition, code, log_sequence } => {
                        let (transfer, attempt) = (transfer.clone(), *attempt);
                        let step = Call::Step { transfer, transition, code, log_sequence, attempt };
                        Some(step)
                    }
                    // An earlier commit with it may have been carried out, or may still be. A
                    // commit of this search excludes that, and returns the state.
                    _ if queued.ticket.maybe => Some(Call::Find(Sought::ReqId(req_id))),
                    _ => {
                        self.resting.push(req_id);
                        return None;
                    }
                }
            }
            // The Funding adapter sends it by itself.
            Call::Operate { .. } => return None,
            Call::Defer { .. }
            | Call::QueryOperation { .. }
            | Call::Find(_)
            | Call::FindExternal(_)
            | Call::FindHold(_)
            | Call::FindRecharge(_)
            | Call::SetFundingStatus { .. } => None,
        };
        Some(Member { queued, instead })
    }
}
