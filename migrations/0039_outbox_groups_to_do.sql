-- What relay and releaser claim of groups: the index of single rows names their kinds, and older versions rely on it. Purchases wait
-- while this index is built. Where the outbox has millions of rows, it is built beforehand, as docs/upgrades.md says; this
-- migration then finds it.

-- A build beforehand that was broken off leaves an index that no query may use.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('outbox_groups_to_do') AND NOT indisvalid) THEN
        RAISE EXCEPTION 'the build of the index outbox_groups_to_do was broken off'
            USING HINT = 'DROP INDEX outbox_groups_to_do, and run `seckill migrate` again.';
    END IF;
END $$;

CREATE INDEX IF NOT EXISTS outbox_groups_to_do ON outbox (kind, next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('group_placed', 'group_expire', 'group_release');
