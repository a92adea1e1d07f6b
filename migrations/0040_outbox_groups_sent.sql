-- What the sweeper looks through for messages about groups that were lost. It is built as 0039_outbox_groups_to_do.sql.

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('outbox_groups_sent') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'the build of the index outbox_groups_sent was broken off'
            USING HINT = 'DROP INDEX outbox_groups_sent, and run `seckill migrate` again.';
    END IF;
END $$;

CREATE INDEX IF NOT EXISTS outbox_groups_sent ON outbox (kind, sent_at)
    WHERE status = 'sent' AND kind IN ('group_placed', 'group_expire');
