-- Work on groups in the outbox. The order_id of such a row is the group's id, or of a release its own; quantity is the sum of the units.
--
--   group_placed   the purchases of a group row are to become orders.
--   group_expire   asks for the cancellation of those orders of a group that are unpaid at due_at.
--   group_release  gives the holds of the orders in `members` back to Redis.
--
-- Versions of before never write these kinds, and claim rows by the names of kinds that they know. The checks are looser than before.
-- They are validated by a later migration, which lets writers pass.
ALTER TABLE outbox
    ADD COLUMN members uuid[],
    DROP CONSTRAINT outbox_kind_known, DROP CONSTRAINT outbox_due_at_fits, DROP CONSTRAINT outbox_returns_fits,
    ADD CONSTRAINT outbox_kind_known CHECK (kind IN ('order_placed', 'order_expire', 'hold_release', 'wave_release',
        'payment_requested', 'group_placed', 'group_expire', 'group_release')) NOT VALID,
    ADD CONSTRAINT outbox_due_at_fits CHECK ((kind IN ('order_expire', 'group_expire')) = (due_at IS NOT NULL)) NOT VALID,
    ADD CONSTRAINT outbox_returns_fits CHECK ((kind IN ('hold_release', 'group_release')) = (returns_units IS NOT NULL)) NOT VALID,
    ADD CONSTRAINT outbox_members_fit CHECK ((kind = 'group_release') = (members IS NOT NULL)) NOT VALID;
