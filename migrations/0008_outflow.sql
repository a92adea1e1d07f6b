-- Outflow: a leaky bucket as a queue. What is due to somebody who takes only so much waits here, and leaves at a constant
-- rate for the whole cluster (docs/outflow.md has the argument).
--
-- A channel's next slot is claimed at dispatch, by whichever worker is there first, in one transaction with the item that
-- is sent in it. Slots are never given out beforehand, so nothing bursts after a pause.
--
--   pending -> sending -> done
--              sending -> pending     tried again; a sender that died is found by its lease
--              sending -> parked      refused, or at the cap; `seckill outflow retry` makes it pending again

CREATE TABLE outflow_channels (
    name        text PRIMARY KEY
                            CONSTRAINT outflow_channels_name_fits CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    -- A slot is a transaction of its own on this one row, and a hundred a second is what that carries with room to spare.
    rate        integer     NOT NULL CONSTRAINT outflow_channels_rate_range CHECK (rate BETWEEN 1 AND 100),
    -- How much later than the quickest a request may arrive, on its way to this receiver.
    jitter_ms   integer     NOT NULL CONSTRAINT outflow_channels_jitter_range CHECK (jitter_ms BETWEEN 0 AND 10000),
    -- From one slot to the next: what rate and jitter ask for, computed in one place (domain::outflow).
    gap_us      bigint      NOT NULL CONSTRAINT outflow_channels_gap_fits
                            CHECK (gap_us * rate > 1000000 + jitter_ms * 1000::bigint),
    next_at     timestamptz NOT NULL DEFAULT now(),
    paused      boolean     NOT NULL DEFAULT false,
    target      text        NOT NULL CONSTRAINT outflow_channels_target_http
                            CHECK (target ~ '^http://[^[:space:]]+$' AND length(target) <= 2000),
    -- Items that may wait; beyond, an item is refused to whoever brings it.
    capacity    bigint      NOT NULL DEFAULT 1000000 CONSTRAINT outflow_channels_capacity_positive CHECK (capacity > 0),
    created_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE TABLE outflow_items (
    id            uuid PRIMARY KEY,
    channel       text        NOT NULL CONSTRAINT outflow_items_channel_known REFERENCES outflow_channels,
    key           text        NOT NULL CONSTRAINT outflow_items_key_length CHECK (length(key) BETWEEN 1 AND 200),
    -- The order within a key: drawn under the key's row lock, so it is the order of the commits.
    seq           bigint GENERATED ALWAYS AS IDENTITY,
    payload       jsonb       NOT NULL
                              CONSTRAINT outflow_items_payload_size CHECK (pg_column_size(payload) <= 65536),
    status        text        NOT NULL DEFAULT 'pending'
                              CONSTRAINT outflow_items_status_known CHECK (status IN ('pending', 'sending', 'done', 'parked')),
    -- Counted at the receiver's failures, never at ours.
    attempts      integer     NOT NULL DEFAULT 0 CONSTRAINT outflow_items_attempts_range CHECK (attempts >= 0),
    -- Which claim of it holds: a sender that comes back from the dead finds a higher one.
    claims        integer     NOT NULL DEFAULT 0 CONSTRAINT outflow_items_claims_range CHECK (claims >= 0),
    claimed_until timestamptz,
    last_error    text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    done_at       timestamptz,
    CONSTRAINT outflow_items_claim_fits CHECK ((status = 'sending') = (claimed_until IS NOT NULL)),
    CONSTRAINT outflow_items_done_fits CHECK ((status = 'done') = (done_at IS NOT NULL)),
    CONSTRAINT outflow_items_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL)
) WITH (fillfactor = 70);

-- The head of a key; and what people look for.
CREATE INDEX outflow_items_waiting ON outflow_items (channel, key, seq) WHERE status IN ('pending', 'sending');
CREATE INDEX outflow_items_oldest ON outflow_items (channel, created_at) WHERE status IN ('pending', 'sending');
CREATE INDEX outflow_items_parked ON outflow_items (channel, seq) WHERE status = 'parked';

-- The keys that have something waiting, in the order of their turns. A key that was served goes to the back; one whose
-- item is being sent, or waits to be tried again, has its turn when that is over, and holds its later items back.
CREATE TABLE outflow_keys (
    channel text        NOT NULL,
    key     text        NOT NULL,
    turn_at timestamptz NOT NULL,
    PRIMARY KEY (channel, key)
) WITH (fillfactor = 70);
CREATE INDEX outflow_keys_turns ON outflow_keys (channel, turn_at, key);

-- How much waits, counted every second by a worker: exact enough for a bound, and nobody queues for a counter.
CREATE TABLE outflow_depths (
    channel text PRIMARY KEY REFERENCES outflow_channels,
    items   bigint      NOT NULL CONSTRAINT outflow_depths_items_range CHECK (items >= 0),
    at      timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION announce_outflow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('seckill_outflow', '');
    RETURN NULL;
END $$;
CREATE TRIGGER outflow_items_announced AFTER INSERT ON outflow_items
    FOR EACH STATEMENT EXECUTE FUNCTION announce_outflow();
CREATE TRIGGER outflow_channels_announced AFTER INSERT OR UPDATE OF paused, rate ON outflow_channels
    FOR EACH STATEMENT EXECUTE FUNCTION announce_outflow();
