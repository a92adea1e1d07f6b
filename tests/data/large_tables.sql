-- Fills the tables as a shop leaves them that sells a lot: for the test of what every statement reads. The numbers are those of the shape at
-- scale 1; seckill.scale is set before. Triggers and references are off, because the rows are right by themselves.
SET session_replication_role = replica;
SET synchronous_commit = off;
CREATE FUNCTION pg_temp.many(n bigint) RETURNS bigint LANGUAGE sql AS
    $$ SELECT greatest(1, (n * current_setting('seckill.scale')::numeric)::bigint) $$;
CREATE FUNCTION pg_temp.id(kind text, i bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT md5(kind || i)::uuid $$;

INSERT INTO products (name) SELECT 'product ' || i FROM generate_series(1, 100) i;
-- Sales 1 to 100 are cleared, 101 to 200 have ended, 201 sells most, 202 to 400 sell, and the others are planned.
INSERT INTO sales (product_id, price_cents, currency, total_stock, stock, per_user, min_level, starts_at, ends_at, pay_within_ms, purchase_key, waiting_key,
                   cleared_at, steps_cleared_at)
SELECT 1 + i % 100, 100, 'CNY', 10000000, 5000000, 5, 0,
       now() + interval '1 day' * CASE WHEN i <= 100 THEN -100 WHEN i <= 200 THEN -20 WHEN i <= 400 THEN -1 ELSE i END,
       now() + interval '1 day' * CASE WHEN i <= 100 THEN -90 WHEN i <= 200 THEN -10 WHEN i <= 400 THEN 1 ELSE i + 1 END,
       60000, 'a', 'b', CASE WHEN i <= 100 THEN now() - interval '80 days' END, NULL
FROM generate_series(1, 3000) i;
INSERT INTO sale_epochs (sale_id, epoch, run_id, filled_at, in_redis) SELECT id, 1, 'run', now(), id > 100 FROM sales;
INSERT INTO sale_waves (id, sale_id, units, due_at, released_at)
SELECT pg_temp.id('wave', i), 1 + i % 3000, 1, now() - interval '1 hour', now() FROM generate_series(1, pg_temp.many(50000)) i;

-- Two million orders, half of them of one sale; a tenth unpaid.
INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, currency, status, reason, created_at, expires_at, group_id)
SELECT pg_temp.id('order', i), CASE WHEN i % 2 = 0 THEN 201 ELSE 1 + i % 400 END, 'u' || i, 1, 100, 'CNY',
       CASE WHEN i % 20 < 2 AND i % 400 >= 200 THEN 'pending_payment' WHEN i % 20 < 16 THEN 'paid' WHEN i % 20 < 18 THEN 'cancelled' ELSE 'refunded' END,
       CASE WHEN i % 20 IN (16, 17) THEN 'expired' END,
       now() - interval '1 ms' * i, now() + interval '1 hour', CASE WHEN i % 4 = 0 THEN pg_temp.id('group', i / 40) ELSE pg_temp.id('order', i) END
FROM generate_series(1, pg_temp.many(2000000)) i;
INSERT INTO sale_buyers (sale_id, user_id, units, per_user) SELECT sale_id, user_id, 1, 5 FROM orders;
INSERT INTO order_steps (order_id, to_status, at) SELECT id, 'pending_payment', created_at FROM orders ORDER BY created_at;
INSERT INTO order_events (order_id, step_id, next_attempt_at)
SELECT order_id, id, now() FROM order_steps ORDER BY id DESC LIMIT pg_temp.many(200000);
INSERT INTO lapsed_holds (order_id, sale_id, user_id, address, quantity)
SELECT id, sale_id, user_id, '10.0.0.1', 1 FROM orders WHERE reason = 'expired';

-- A million rows of the outbox, and 300,000 releases besides. `pending` are 15 of 100; a fifth waits in the queues.
INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, due_at, status, next_attempt_at, sent_at, processed_at)
SELECT kind, pg_temp.id('order', i), CASE WHEN i % 2 = 0 THEN 201 ELSE 1 + i % 400 END, 1, 0,
       CASE kind WHEN 'group_expire' THEN now() + interval '1 hour' END,
       CASE WHEN i % 100 < 15 THEN 'pending' WHEN i % 100 < 35 THEN 'sent' ELSE 'processed' END, now() - interval '1 ms' * i, now(), now()
FROM generate_series(1, pg_temp.many(500000)) i, unnest(ARRAY['group_placed', 'group_expire']) kind;
INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, returns_units, members, status, next_attempt_at, processed_at)
SELECT 'hold_release', pg_temp.id('order', i), CASE WHEN i % 2 = 0 THEN 201 ELSE 1 + i % 400 END, 1, 0, true, ARRAY[pg_temp.id('order', i)],
       CASE WHEN i % 100 < 15 THEN 'pending' ELSE 'processed' END, now() - interval '1 ms' * i, now()
FROM generate_series(1, pg_temp.many(300000)) i;
INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, status, attempts, last_error)
SELECT 'group_placed', pg_temp.id('parked', i), 201, 1, 0, 'parked', 10, 'why' FROM generate_series(1, pg_temp.many(20000)) i;

-- Half a million groups of one, and 30,000 of ten.
INSERT INTO purchase_groups (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses, settled_at)
SELECT pg_temp.id('order', i), CASE WHEN i % 2 = 0 THEN 201 ELSE 1 + i % 400 END, 1, 0, 1, 1, ARRAY[pg_temp.id('order', i)], ARRAY['u' || i],
       ARRAY[1], ARRAY['10.0.0.1'], CASE WHEN i % 100 >= 15 THEN now() END
FROM generate_series(1, pg_temp.many(500000)) i WHERE i % 4 > 0;
INSERT INTO purchase_groups (id, sale_id, epoch, shard, members, units, order_ids, user_ids, quantities, addresses, settled_at)
SELECT pg_temp.id('group', i), CASE WHEN i % 2 = 0 THEN 201 ELSE 1 + i % 400 END, 1, 0, 10, 10,
       ARRAY(SELECT pg_temp.id('order', i * 40 + n * 4) FROM generate_series(0, 9) n), ARRAY(SELECT 'u' || i * 40 + n * 4 FROM generate_series(0, 9) n),
       array_fill(1, ARRAY[10]), array_fill('10.0.0.1'::text, ARRAY[10]), CASE WHEN i % 100 >= 15 OR i % 400 < 200 THEN now() END
FROM generate_series(1, pg_temp.many(30000)) i;
INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, due_at, status, next_attempt_at, sent_at)
SELECT kind, g.id, g.sale_id, 10, 0, CASE kind WHEN 'group_expire' THEN now() + interval '1 hour' END,
       CASE WHEN g.place % 100 < 15 THEN 'pending' WHEN g.place % 100 < 35 THEN 'sent' ELSE 'processed' END, now() - interval '1 ms' * g.place, now()
FROM purchase_groups g, unnest(ARRAY['group_placed', 'group_expire']) kind WHERE g.members > 1;
INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, returns_units, members, status, next_attempt_at)
SELECT 'hold_release', pg_temp.id('release', g.place), g.sale_id, 10, 0, true, g.order_ids,
       CASE WHEN g.place % 100 < 15 THEN 'pending' ELSE 'processed' END, now() - interval '1 ms' * g.place
FROM purchase_groups g WHERE g.members > 1;
INSERT INTO processed_messages (message_id, consumer, processed_at)
SELECT pg_temp.id('message', i), 'fulfil', now() - interval '1 minute' * (i % 20000) FROM generate_series(1, pg_temp.many(1000000)) i;

-- Money.
INSERT INTO payments (id, order_id, channel, amount_cents, currency, status, pays, ask_at, ended_at, created_at)
SELECT pg_temp.id('payment', i), pg_temp.id('order', i), 'sandbox', 100, 'CNY',
       CASE WHEN i % 20 = 0 THEN 'created' WHEN i % 20 = 1 THEN 'waiting' WHEN i % 20 = 2 THEN 'failed' ELSE 'succeeded' END, i % 20 > 2,
       CASE WHEN i % 20 = 1 THEN now() + interval '1 hour' END, CASE WHEN i % 20 > 1 THEN now() END, now() - interval '1 ms' * i
FROM generate_series(1, pg_temp.many(500000)) i;
INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, status, sent_at, processed_at)
SELECT 'payment_requested', id, 201, 1, 0, CASE status WHEN 'created' THEN 'pending' WHEN 'waiting' THEN 'sent' ELSE 'processed' END, now(), now()
FROM payments;
INSERT INTO refunds (id, payment_id, order_id, channel, amount_cents, currency, cause, asked_by, reason, status, key, queued, ended_at)
SELECT pg_temp.id('refund', i), pg_temp.id('payment', i), pg_temp.id('order', i), 'sandbox', 100, 'CNY', 'asked', 'u', '',
       CASE WHEN i % 20 = 3 THEN 'requested' WHEN i % 20 = 4 THEN 'failed' ELSE 'succeeded' END, pg_temp.id('key', i), i % 40 = 3,
       CASE WHEN i % 20 <> 3 THEN now() END
FROM generate_series(1, pg_temp.many(200000)) i WHERE i % 20 > 2;
INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
SELECT 'payment', id, order_id, 'channel', 'buyers', amount_cents, currency FROM payments WHERE status = 'succeeded';
INSERT INTO callbacks_set_aside (channel, message_id, problem, body, settled_at)
SELECT 'sandbox', 'm' || i, 'unknown', '{}', CASE WHEN i % 10 > 0 THEN now() END FROM generate_series(1, pg_temp.many(100000)) i;

-- Flow control, what is sent on, and what people did.
INSERT INTO apps (name, token_hash, created_by) SELECT 'app' || i, sha256(('t' || i)::bytea), 'a' FROM generate_series(1, 200) i;
INSERT INTO policies (name, home, algorithm, max_permits, window_ms, created_by, updated_by)
SELECT 'policy' || i, 'app' || (1 + i % 200), 'fixed-window', 10, 1000, 'a', 'a' FROM generate_series(1, 1000) i;
INSERT INTO policy_minutes (policy_id, minute, granted, refused, waited_ms, failed)
SELECT 1 + i % 1000, date_trunc('minute', now()) - interval '1 minute' * (i / 1000), 1, 1, 1, 0 FROM generate_series(1, pg_temp.many(1000000)) i;
INSERT INTO outflow_channels (name, rate, jitter_ms, gap_us, target)
SELECT 'channel' || i, 10, 10, 200000, 'http://127.0.0.1/' FROM generate_series(1, 20) i;
INSERT INTO outflow_items (id, channel, key, payload, status, claimed_until, done_at, last_error)
SELECT pg_temp.id('item', i), 'channel' || (1 + i % 20), 'k' || i % 1000, '{}',
       CASE WHEN i % 100 < 15 THEN 'pending' WHEN i % 100 = 15 THEN 'parked' ELSE 'done' END, NULL, CASE WHEN i % 100 > 15 THEN now() END,
       CASE WHEN i % 100 = 15 THEN 'why' END
FROM generate_series(1, pg_temp.many(1000000)) i;
INSERT INTO outflow_keys (channel, key, turn_at) SELECT DISTINCT channel, key, now() FROM outflow_items WHERE status = 'pending';
INSERT INTO audit_log (at, actor, action, subject)
SELECT now() - interval '1 second' * i, 'actor' || i % 50, 'action' || i % 30, 'sale ' || i % 3000 FROM generate_series(1, pg_temp.many(1000000)) i;
INSERT INTO alarms (kind, subject, cleared_at, told_raised, told_cleared)
SELECT 'drift', 'sale ' || i, CASE WHEN i > 20 THEN now() END, true, true FROM generate_series(1, pg_temp.many(100000)) i;
INSERT INTO accounts (name, role, password_hash, created_by) SELECT 'a' || i, 'viewer', '$argon2id$', 'a' FROM generate_series(1, 200) i;
INSERT INTO sessions (token_hash, account, expires_at)
SELECT sha256(('s' || i)::bytea), 'a' || (1 + i % 200), now() + interval '1 hour' FROM generate_series(1, pg_temp.many(50000)) i;
INSERT INTO catalog_changes (version, kind, id, removed, at)
SELECT 100000 + i, 'sale', 1 + i % 3000, false, now() - interval '1 second' * (100000 - i) FROM generate_series(1, pg_temp.many(100000)) i;
RESET session_replication_role;
