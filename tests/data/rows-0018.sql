-- What a sale leaves behind in the schema of migration 18: tests/api/migrations.rs migrates it. The figures add up, so that
-- `seckill audit` finds nothing: 15 units, of which ann and ben hold one each, 5 are a wave to come, and 8 are left.

INSERT INTO products (name, description) VALUES ('Old phone', 'Sold by an older version.');
INSERT INTO sales (product_id, price_cents, total_stock, stock, per_user, min_level, starts_at, ends_at, pay_within_ms,
                   purchase_key, waiting_key)
SELECT id, 500, 15, 8, 1, 0, now() - interval '1 hour', now() + interval '1 day', 86400000,
       '00000000000000000000000000000001', '00000000000000000000000000000002' FROM products;
INSERT INTO sale_epochs (sale_id, epoch) SELECT id, 3 FROM sales;
INSERT INTO sale_waves (sale_id, units, due_at) SELECT id, 5, now() + interval '1 day' FROM sales;

-- ann has to pay, ben has paid, and cat has cancelled.
INSERT INTO orders (id, sale_id, user_id, quantity, amount_cents, status, expires_at)
SELECT buyer.id::uuid, sales.id, buyer.name, 1, 500, 'pending_payment', now() + interval '1 day'
FROM sales, (VALUES ('0197b2f0-0000-7000-8000-00000000000a', 'ann'),
                    ('0197b2f0-0000-7000-8000-00000000000b', 'ben'),
                    ('0197b2f0-0000-7000-8000-00000000000c', 'cat')) AS buyer (id, name);
UPDATE orders SET status = 'paid' WHERE user_id = 'ben';
UPDATE orders SET status = 'cancelled', reason = 'by-buyer' WHERE user_id = 'cat';
INSERT INTO sale_buyers (sale_id, user_id, units, per_user)
SELECT sale_id, user_id, CASE WHEN status = 'cancelled' THEN 0 ELSE 1 END, 1 FROM orders;

INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, status, sent_at, processed_at)
SELECT 'order_placed', id, sale_id, user_id, 1, 3, 0, 'processed', now(), now() FROM orders;
INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, due_at, status, sent_at, processed_at)
SELECT 'order_expire', id, sale_id, user_id, 1, 3, 0, expires_at, CASE WHEN user_id = 'ann' THEN 'sent' ELSE 'processed' END,
       now(), CASE WHEN user_id <> 'ann' THEN now() END FROM orders;
INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, returns_units, status, processed_at)
SELECT 'hold_release', id, sale_id, user_id, 1, 3, 0, true, 'processed', now() FROM orders WHERE user_id = 'cat';

INSERT INTO payments (id, order_id, channel, amount_cents, currency, status, pays, sent_at, ended_at)
SELECT '0197b2f0-0000-7000-8000-0000000000bb', id, 'sandbox', 500, 'CNY', 'succeeded', true, now(), now()
FROM orders WHERE user_id = 'ben';
INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
SELECT 'payment', id, order_id, 'channel:sandbox', 'sales', 500, 'CNY' FROM payments;

-- People, applications, and what they have set. The hash is of no password.
INSERT INTO accounts (name, role, password_hash, created_by) VALUES ('olga', 'admin', '$argon2id$none', 'cli');
INSERT INTO sessions (token_hash, account, expires_at)
VALUES (decode(repeat('0a', 32), 'hex'), 'olga', now() + interval '1 hour');
INSERT INTO apps (name, token_hash, created_by) VALUES ('shop', decode(repeat('0b', 32), 'hex'), 'cli');
INSERT INTO policies (name, home, algorithm, max_permits, window_ms, created_by, updated_by)
VALUES ('login', 'shop', 'fixed-window', 10, 1000, 'cli', 'cli');
INSERT INTO policy_apps (app, name, policy_id) SELECT 'shop', name, id FROM policies;
INSERT INTO alarms (kind, subject, cleared_at, told_raised, told_cleared) VALUES ('drift', 'sale 1', now(), true, true);
INSERT INTO audit_log (actor, action, subject) VALUES ('cli', 'create sale', 'sale 1');
