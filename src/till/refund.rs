//! One look at one return that is due. Its money is in suspense, or in a hold of its user.

use std::sync::Arc;

use tracing::warn;

use super::call::Shop;
use super::step::{is_return_stuck, next_return};
use super::watch;
use crate::adapters::Adapter;
use crate::alert::{Alert, alert_about};
use crate::channels::RefundAsk;
use crate::channels::open::OpenChannel;
use crate::coordinator::Rejection;
use crate::crash;
use crate::postgres::reads::recharges::DueReturn;
use crate::recharge::ReturnId;
use crate::recharge::answers::{Refunded, ReturnedSum};
use crate::recharge::payment::{HeldCause, RechargePayment};
use crate::recharge::returned::{RechargeReturn, ReturnState};

impl<T: Adapter, F: Adapter> Shop<T, F> {
    /// Asks for a return, behind a durable SENT. A channel is asked under one number, and sends no
    /// more at a repeat.
    ///
    /// # Errors
    /// A [`Rejection`]: the row has its time, or the return is looked at again soon.
    pub(super) async fn refund(&self, due: DueReturn) -> Result<(), Rejection> {
        let DueReturn { back, payment, asked } = due;
        let Some(channel) = self.channels.get(&payment.channel) else { return Ok(()) };
        if back.state == ReturnState::Ready && self.is_too_much(channel, &payment, &back).await? {
            report_too_much(&payment, back.id);
            self.recharges.unsent(&payment, back.id).await?;
            return Ok(());
        }
        let next_at = next_return(&back, self.options.pace(), self.now(), self.random());
        let sent = self.recharges.sent(&payment, &back, next_at).await?;
        let Some(back) = sent else { return Ok(()) };
        crash::point("return_after_send");
        if self.is_quiet() {
            return Ok(());
        }
        let (return_no, minor_units) = (back.id.to_string(), back.minor_units);
        let (no, trade_no) = (payment.merchant_no.clone(), payment.trade_no.clone());
        let currency = payment.currency.clone();
        let total = total_of(&payment, asked).max(minor_units);
        let refunded = self.call(channel, "refund", move |channel| {
            channel.refund(&RefundAsk {
                return_no: &return_no,
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units,
                total_minor_units: total,
                currency: &currency,
            })
        });
        let refunded = refunded.await;
        crash::point("return_after_there");
        match refunded {
            Some(Refunded::Done) => {
                self.recharges.returned(&payment, back.id, true).await?;
            }
            Some(Refunded::Refused(code)) => {
                warn!(return_id = %back.id, code, "a channel refuses a return");
                self.recharges.returned(&payment, back.id, false).await?;
            }
            Some(Refunded::UnderWay { is_stuck: true }) => {
                watch::stuck(&back.id, "a return that has left us and does not arrive");
            }
            Some(Refunded::UnderWay { is_stuck: false } | Refunded::Unknown(_)) | None => {
                if is_return_stuck(&back, self.now()) {
                    watch::stuck(&back.id, "a return");
                }
            }
        }
        Ok(())
    }

    /// Whether the channel has given more of a payment back than is known here, beside this return.
    async fn is_too_much(
        &self,
        channel: &Arc<OpenChannel>,
        payment: &RechargePayment,
        back: &RechargeReturn,
    ) -> Result<bool, Rejection> {
        let (return_no, no) = (back.id.to_string(), payment.merchant_no.clone());
        let (trade_no, currency) = (payment.trade_no.clone(), payment.currency.clone());
        let (minor_units, total) = (back.minor_units, payment.minor_units);
        let returned = self.call(channel, "returned", move |channel| {
            channel.returned(&RefundAsk {
                return_no: &return_no,
                merchant_no: &no,
                trade_no: &trade_no,
                minor_units,
                total_minor_units: total,
                currency: &currency,
            })
        });
        let there = match returned.await {
            Some(ReturnedSum::Sum(sum)) => sum,
            // In doubt the return goes on: each try of it looks at the channel first again.
            Some(ReturnedSum::None | ReturnedSum::Unknown(_)) | None => return Ok(false),
        };
        Ok(there > self.recharges.returned_here(payment, back.id).await?)
    }
}

fn report_too_much(payment: &RechargePayment, id: ReturnId) {
    let payment_id = payment.id;
    let what = format_args!(
        "return {id} of payment {payment_id}: the channel has given more of the payment back than \
         is known here, so nothing more is sent"
    );
    alert_about(Alert::RechargeContradiction, &payment_id, what);
}

/// The price of a payment, as its channel has it, in minor units. Of a discounted payment less has
/// arrived, and the refusal of its first return takes the place of that cause. `asked`: the price
/// of its order.
fn total_of(payment: &RechargePayment, asked: Option<i64>) -> i64 {
    let less = [Some(HeldCause::Discounted), Some(HeldCause::ReturnRefused)];
    let asked = asked.filter(|_| less.contains(&payment.cause));
    asked.unwrap_or(0).max(payment.minor_units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recharge::decide::tests::{facts, recorded};
    use crate::recharge::facts::Facts;
    use crate::recharge::payment::Disposition;

    /// Goal: each return of a discounted payment names its price.
    #[test]
    fn each_return_of_a_discounted_payment_names_its_price() {
        let less = Facts { minor_units: 9_000, ..facts() };
        for (cause, asked, want) in [
            (Some(HeldCause::Discounted), Some(10_000), 10_000),
            (Some(HeldCause::ReturnRefused), Some(10_000), 10_000),
            // More has arrived than was asked for.
            (Some(HeldCause::ReturnRefused), Some(8_000), 9_000),
            // There is no order.
            (Some(HeldCause::Unmatched), None, 9_000),
            (Some(HeldCause::ReturnRefused), None, 9_000),
            // Another amount than that of its order is its price.
            (Some(HeldCause::Amount), Some(10_000), 9_000),
            (None, Some(9_000), 9_000),
        ] {
            let payment = recorded(&less, Disposition::Returning, cause);
            assert_eq!(total_of(&payment, asked), want, "{cause:?} {asked:?}");
        }
    }
}
