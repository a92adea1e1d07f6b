//! Lets time pass for a receiver that fails.

use std::time::Duration;

use sqlx::PgPool;

use crate::eventually;

/// Waits for a probe to fail, then moves the clock of all that waits for the receiver to the end of its pause, and so on until `time` has
/// passed. Returns how many times the receiver has failed.
pub async fn outage(sql: &PgPool, receiver: &str, time: Duration) -> usize {
    let (mut passed, mut probes, mut failures) = (Duration::ZERO, 0, 0);
    while passed < time {
        let (known, pause_s) = eventually(|| async {
            let row: Option<(i32, f64)> = sqlx::query_as(
                "SELECT failures, extract(epoch FROM pauses_until - clock_timestamp())::float8
                 FROM receivers_away WHERE receiver = $1",
            )
            .bind(receiver)
            .fetch_optional(sql)
            .await
            .unwrap();
            row.filter(|(known, _)| *known > failures).ok_or_else(|| format!("{row:?}"))
        })
        .await;
        // Not positive for a request that was on its way when time passed.
        let pause_s = pause_s.max(0.0);
        (failures, probes, passed) = (known, probes + 1, passed + Duration::from_secs_f64(pause_s));
        for statement in [
            "UPDATE receivers_away SET pauses_until = clock_timestamp(), since = since - $1 * interval '1 s',
                                       tried_at = tried_at - $1 * interval '1 s'",
            "UPDATE order_events SET next_attempt_at = next_attempt_at - $1 * interval '1 s' WHERE status = 'pending'",
            "UPDATE outflow_keys SET turn_at = turn_at - $1 * interval '1 s'",
            "UPDATE payments SET ask_at = ask_at - $1 * interval '1 s' WHERE ask_at IS NOT NULL",
            "UPDATE refunds SET asked_at = asked_at - $1 * interval '1 s' WHERE asked_at IS NOT NULL",
        ] {
            sqlx::query(statement).bind(pause_s).execute(sql).await.unwrap();
        }
    }
    probes
}
