-- Holds that nobody paid in time: whose they were, and from which network address they were taken. For the sale's manager, and
-- for a refill, because a buyer of several such holds waits before the next (protocol, rule 17).

-- Adding a column takes a moment, but it waits for those who use the table, and all others wait behind it. Better no change than
-- such a wait: `seckill migrate` can be repeated.
SET LOCAL lock_timeout = '1s';

-- The address that a purchase came from, as the limits see it; null where a hold was finished by the reconciler.
ALTER TABLE outbox ADD COLUMN address text;

CREATE TABLE lapsed_holds (
    order_id  uuid        PRIMARY KEY,
    sale_id   bigint      NOT NULL,
    user_id   text        NOT NULL,
    address   text,
    quantity  integer     NOT NULL,
    lapsed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX lapsed_holds_of_sale ON lapsed_holds (sale_id, user_id);
