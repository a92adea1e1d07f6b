-- What the console lists, as 0027_orders_by_status.sql. Payments wait until the index is complete.

-- A build beforehand that was broken off leaves an index that no query may use.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('payments_without_money') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'the build of the index payments_without_money was broken off'
            USING HINT = 'DROP INDEX payments_without_money, and run `seckill migrate` again.';
    END IF;
END $$;

-- Payments that moved no money. Their ids rise with time, so that the primary key lists all payments, and the partial indexes of
-- the others list those under way.
CREATE INDEX IF NOT EXISTS payments_without_money ON payments (id) WHERE status IN ('failed', 'abandoned');
