//! Spends challenges. Until it is answered, a challenge costs Redis nothing: its buyer keeps it, sealed.

use super::reply_codes::{AnswerCode, SaleCode};
use super::{Gate, GateError, timed};
use crate::domain::captcha::Spending;
use crate::domain::ids::UserId;
use crate::domain::shards::SaleShards;

const MALFORMED: GateError = GateError::Malformed("answer_challenge");

impl Gate {
    /// Spends a challenge of this buyer, right or wrong. `serial` is the challenge's own, and `now_ms` the database's time.
    ///
    /// # Errors
    /// Whether the challenge is spent is unknown: the buyer asks for another one.
    pub async fn spend_challenge(
        &self,
        of: SaleShards,
        user: &UserId,
        serial: &str,
        expires_at_ms: i64,
        now_ms: i64,
    ) -> Result<Spending, GateError> {
        let home = of.home(user.as_str());
        let keys = self.keys.sale(of, home);
        let mut call = self.scripts.answer_challenge.key(&keys.lasting());
        call.key(self.keys.challenge(of, home, serial));
        call.arg(user.as_str()).arg(expires_at_ms).arg(now_ms);
        let reply: Vec<i64> =
            timed("answer_challenge", call.invoke_async(&mut self.connections.of(&keys.sale))).await?;
        match *reply {
            [code, now_ms, passes_spent] => Ok(match AnswerCode::from_repr(code).ok_or(MALFORMED)? {
                AnswerCode::Spent => {
                    Spending::Spent { now_ms, passes_spent: u32::try_from(passes_spent).map_err(|_| MALFORMED)? }
                }
                AnswerCode::SpentBefore => Spending::SpentBefore,
                AnswerCode::Expired => Spending::Expired,
            }),
            [code] => match SaleCode::from_repr(code).ok_or(MALFORMED)? {
                SaleCode::UnknownSale | SaleCode::Refilling => {
                    self.refill_wanted.add(of.sale);
                    Ok(Spending::NotServing)
                }
            },
            _ => Err(MALFORMED),
        }
    }
}
