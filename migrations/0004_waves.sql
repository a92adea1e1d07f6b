-- Stock that is put up for sale later: waves that were planned with the sale, and stock that was added to it since.
-- Each is one row, released once here, and applied once an epoch in Redis (protocol, rule 14).

CREATE TABLE sale_waves (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    sale_id     bigint      NOT NULL REFERENCES sales,
    units       integer     NOT NULL CONSTRAINT sale_waves_units_positive CHECK (units > 0),
    due_at      timestamptz NOT NULL,
    released_at timestamptz
);
CREATE INDEX sale_waves_to_release ON sale_waves (due_at) WHERE released_at IS NULL;
CREATE INDEX sale_waves_of_sale ON sale_waves (sale_id);

-- A wave's release travels to Redis through the outbox, as a hold's does; its order_id is the wave's id.
ALTER TABLE outbox
    DROP CONSTRAINT outbox_kind_known,
    ADD CONSTRAINT outbox_kind_known CHECK (kind IN ('order_placed', 'order_expire', 'hold_release', 'wave_release'));
