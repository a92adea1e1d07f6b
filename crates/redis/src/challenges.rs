//! Spends challenges. An unanswered challenge costs Redis nothing: its buyer keeps it, sealed.

use super::reply_codes::AnswerCode;
use super::{Gate, GateError, scripts, timed};
use seckill_domain::captcha::Spending;
use seckill_domain::ids::UserId;
use seckill_domain::shards::SaleShards;

const MALFORMED: GateError = GateError::Malformed("answer_challenge");

impl Gate {
    /// Spends a challenge of this buyer, whether the answer is right or wrong. `now_ms` is the database's time.
    ///
    /// # Errors
    /// It is unknown whether the challenge is spent. The buyer asks for another one.
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
        let mut call = scripts::ANSWER_CHALLENGE.key(&keys.lasting());
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
            [code] => self.not_serving(of.sale, code, "answer_challenge").map(|()| Spending::NotServing),
            _ => Err(MALFORMED),
        }
    }
}
