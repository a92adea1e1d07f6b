-- What the console lists. No purchase writes to this table: CREATE INDEX lets all read it, and lets fulfilment and payments wait until
-- the index is complete. docs/console.md says how it is built beforehand where there are millions of orders, while everything goes on;
-- this migration then finds it.

-- A build beforehand that was broken off leaves an index that no query may use.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('orders_by_status') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'the build of the index orders_by_status was broken off'
            USING HINT = 'DROP INDEX orders_by_status, and run `seckill migrate` again.';
    END IF;
END $$;

-- Orders of one status, and of all: those are the newest of each status.
CREATE INDEX IF NOT EXISTS orders_by_status ON orders (status, created_at, id);
