-- Instead of payments_created, as 0046_oldest_items.sql. Payments wait until the index is complete.

-- A build beforehand that was broken off leaves an index that no query may use.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('payments_not_sent') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'the build of the index payments_not_sent was broken off'
            USING HINT = 'DROP INDEX payments_not_sent, and run `seckill migrate` again.';
    END IF;
END $$;

CREATE INDEX IF NOT EXISTS payments_not_sent ON payments (created_at) WHERE status || '' = 'created';
