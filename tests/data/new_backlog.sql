-- Makes a part of the rows that drain.sql has processed pending again.
SET session_replication_role = replica;
SET synchronous_commit = off;
UPDATE outbox SET status = CASE WHEN id % 4 = 0 THEN 'pending' ELSE 'sent' END, next_attempt_at = now(), sent_at = now() - interval '1 hour'
WHERE status = 'processed' AND id % 4 < 3 AND kind NOT IN ('hold_release', 'wave_release');
UPDATE outbox SET status = 'pending', next_attempt_at = now() WHERE status = 'processed' AND id % 2 = 0;
UPDATE orders SET status = 'pending_payment' WHERE status = 'paid' AND left(id::text, 1) < '4';
UPDATE purchase_groups SET settled_at = NULL WHERE left(id::text, 1) < '4';
INSERT INTO order_events (order_id, step_id, next_attempt_at) SELECT order_id, id, now() FROM order_steps WHERE id % 4 = 0;
UPDATE outflow_items SET status = CASE WHEN left(id::text, 1) = '0' THEN 'parked' ELSE 'pending' END, done_at = NULL, last_error = 'why'
WHERE status = 'done' AND left(id::text, 1) < '4';
INSERT INTO outflow_keys (channel, key, turn_at) SELECT DISTINCT channel, key, now() FROM outflow_items WHERE status = 'pending';
UPDATE payments SET status = CASE WHEN left(id::text, 1) < '2' THEN 'created' ELSE 'waiting' END, pays = false, ended_at = NULL,
                    ask_at = CASE WHEN left(id::text, 1) >= '2' THEN now() END
WHERE status = 'succeeded' AND left(id::text, 1) < '4';
UPDATE refunds SET status = 'requested', ended_at = NULL WHERE status = 'succeeded' AND left(id::text, 1) < '4';
UPDATE refunds SET status = 'failed' WHERE status = 'succeeded' AND left(id::text, 1) = '4';
UPDATE callbacks_set_aside SET settled_at = NULL WHERE id % 4 = 0;
RESET session_replication_role;
