-- What the console lists. No purchase writes to these tables: CREATE INDEX lets all read them, and lets fulfilment and payments
-- wait until the index is complete.

-- Better no change than a long wait: `seckill migrate` can be repeated.
SET LOCAL lock_timeout = '1s';
-- A build that takes longer is given up, and nothing has changed. docs/console.md says how such an index is built beforehand,
-- while everything goes on; this migration then finds it.
SET LOCAL statement_timeout = '5s';

-- A build beforehand that was broken off leaves an index that no query may use.
DO $$
DECLARE
    broken text;
BEGIN
    SELECT string_agg(indexrelid::regclass::text, ', ') INTO broken FROM pg_index
    WHERE indexrelid IN (to_regclass('orders_by_status'), to_regclass('payments_without_money')) AND NOT indisvalid;
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'the build of these indexes was broken off: %', broken
            USING HINT = 'DROP INDEX each of them, and run `seckill migrate` again.';
    END IF;
END $$;

-- Orders of one status, and of all: those are the newest of each status.
CREATE INDEX IF NOT EXISTS orders_by_status ON orders (status, created_at, id);
-- Payments that moved no money. Their ids rise with time, so that the primary key lists all payments, and the partial indexes of
-- the others list those under way.
CREATE INDEX IF NOT EXISTS payments_without_money ON payments (id) WHERE status IN ('failed', 'abandoned');
