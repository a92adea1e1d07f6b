-- Outflow: a leaky bucket as a queue. A receiver with a limited rate gets its items at a constant rate for the whole cluster
-- (docs/delivery.md has the argument).
--
-- The first free worker claims a channel's next slot at dispatch, in one transaction with the item that it sends. Slots are
-- never given out beforehand, so nothing bursts after a pause.

CREATE TABLE outflow_channels (
    name        text PRIMARY KEY
                            CONSTRAINT outflow_channels_name_fits CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    -- Each slot is a transaction on this row, and 100 a second leave it room to spare.
    rate        integer     NOT NULL CONSTRAINT outflow_channels_rate_range CHECK (rate BETWEEN 1 AND 100),
    -- How much later than the fastest request another may arrive at this receiver.
    jitter_ms   integer     NOT NULL CONSTRAINT outflow_channels_jitter_range CHECK (jitter_ms BETWEEN 0 AND 10000),
    -- From one slot to the next: domain::outflow computes it from rate and jitter.
    gap_us      bigint      NOT NULL CONSTRAINT outflow_channels_gap_fits
                            CHECK (gap_us * rate > 1000000 + jitter_ms * 1000::bigint),
    next_at     timestamptz NOT NULL DEFAULT now(),
    paused      boolean     NOT NULL DEFAULT false,
    target      text        NOT NULL CONSTRAINT outflow_channels_target_http
                            CHECK (target ~ '^https?://[^[:space:]]+$' AND length(target) <= 2000),
    -- The most items in the backlog. Beyond it, items are refused.
    capacity    bigint      NOT NULL DEFAULT 1000000 CONSTRAINT outflow_channels_capacity_positive CHECK (capacity > 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- The payment channel whose refunds leave here; NULL for every other outflow. A worker without this channel in its
    -- settings cannot sign the requests, and leaves the outflow alone.
    payment_channel text
-- Each slot rewrites the row.
) WITH (fillfactor = 50);

-- pending -> sending -> done
--            sending -> pending     tried again; also when its sender died and the lease has ended
--            sending -> parked      refused, or at the cap of attempts; `seckill outflow retry` makes it pending again
CREATE TABLE outflow_items (
    id            uuid PRIMARY KEY,
    channel       text        NOT NULL CONSTRAINT outflow_items_channel_known REFERENCES outflow_channels,
    key           text        NOT NULL CONSTRAINT outflow_items_key_length CHECK (length(key) BETWEEN 1 AND 200),
    -- The order within a key. It is drawn under the key's row lock, so it is the order of the commits.
    seq           bigint GENERATED ALWAYS AS IDENTITY,
    payload       jsonb       NOT NULL
                              CONSTRAINT outflow_items_payload_size CHECK (pg_column_size(payload) <= 65536),
    status        text        NOT NULL DEFAULT 'pending'
                              CONSTRAINT outflow_items_status_known CHECK (status IN ('pending', 'sending', 'done', 'parked')),
    -- Counts the receiver's failures, never ours.
    attempts      integer     NOT NULL DEFAULT 0 CONSTRAINT outflow_items_attempts_range CHECK (attempts >= 0),
    -- The number of the present claim. A sender whose lease has ended finds a higher one.
    claims        integer     NOT NULL DEFAULT 0 CONSTRAINT outflow_items_claims_range CHECK (claims >= 0),
    claimed_until timestamptz,
    last_error    text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    done_at       timestamptz,
    CONSTRAINT outflow_items_claim_fits CHECK ((status = 'sending') = (claimed_until IS NOT NULL)),
    CONSTRAINT outflow_items_done_fits CHECK ((status = 'done') = (done_at IS NOT NULL)),
    CONSTRAINT outflow_items_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL)
) WITH (fillfactor = 70);
-- For dispatch: the first item of a key.
CREATE INDEX outflow_items_waiting ON outflow_items (channel, key, seq) WHERE status IN ('pending', 'sending');
-- For the age of the oldest item. The odd expression reserves it for that statement: by the plain comparison PostgreSQL
-- would also choose it to find the items of one key, and read the whole backlog.
CREATE INDEX outflow_items_first ON outflow_items (channel, created_at) WHERE status || '' IN ('pending', 'sending');
-- For people.
CREATE INDEX outflow_items_parked ON outflow_items (channel, seq) WHERE status = 'parked';

-- The keys with a backlog, round robin: a key that was served goes to the back. While an item of a key is in flight, or
-- rests before its next attempt, turn_at is the end of that, and the key's later items wait.
CREATE TABLE outflow_keys (
    channel text        NOT NULL,
    key     text        NOT NULL,
    turn_at timestamptz NOT NULL,
    PRIMARY KEY (channel, key)
) WITH (fillfactor = 70);
-- For dispatch: the next key.
CREATE INDEX outflow_keys_turns ON outflow_keys (channel, turn_at, key);

-- The backlog of each channel. A worker counts it every second: exact enough for the capacity, and no lock on a counter.
CREATE TABLE outflow_depths (
    channel text PRIMARY KEY REFERENCES outflow_channels,
    items   bigint      NOT NULL CONSTRAINT outflow_depths_items_range CHECK (items >= 0),
    at      timestamptz NOT NULL DEFAULT now()
);

-- Wakes the workers at once when there is something to send.
CREATE FUNCTION announce_outflow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('seckill_outflow', '');
    RETURN NULL;
END $$;
CREATE TRIGGER outflow_items_announced AFTER INSERT ON outflow_items
    FOR EACH STATEMENT EXECUTE FUNCTION announce_outflow();
CREATE TRIGGER outflow_channels_announced AFTER INSERT OR UPDATE OF paused, rate ON outflow_channels
    FOR EACH STATEMENT EXECUTE FUNCTION announce_outflow();
