-- What is repeated each second reads no sale but those that sell, will soon, or have just ended; and what clears old sales reads no sale
-- that is cleared. No purchase writes to this table: CREATE INDEX lets all read it, and lets fulfilment wait until the index is complete.
-- Where there are millions of sales, it is built beforehand by CREATE INDEX CONCURRENTLY; this migration then finds it.

-- A build beforehand that was broken off leaves an index that no query may use.
DO $$
DECLARE
    broken text;
BEGIN
    SELECT c.relname INTO broken FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = 'sales'::regclass AND NOT i.indisvalid LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the build of the index % was broken off', broken
            USING HINT = format('DROP INDEX %s, and run `seckill migrate` again.', broken);
    END IF;
END $$;

-- The constraint sales_window holds that a window does not end before it starts. Neither end changes while a sale sells, so updates of the
-- stock stay on their page.
CREATE INDEX IF NOT EXISTS sales_by_window ON sales USING gist (tstzrange(starts_at, ends_at));
CREATE INDEX IF NOT EXISTS sales_to_clear ON sales (ends_at) WHERE cleared_at IS NULL;
CREATE INDEX IF NOT EXISTS sales_steps_to_clear ON sales (cleared_at) WHERE cleared_at IS NOT NULL AND steps_cleared_at IS NULL;
