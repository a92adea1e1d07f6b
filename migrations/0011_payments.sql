-- Money: payments through a channel, refunds, and the books. docs/payments.md tells the story.
--
-- payments:  created -> sending -> waiting -> succeeded | failed
--            created -> abandoned      its order ended before anything was sent
--            sending -> created        the channel says that it has not heard of it, or nothing was sent
-- Money is money whatever was thought before: a payment of any status becomes succeeded when the channel says that it
-- has taken it, and is refunded where no order waits for it.

CREATE TABLE payments (
    -- Also the Idempotency-Key that the channel sees.
    id           uuid PRIMARY KEY,
    order_id     uuid        NOT NULL CONSTRAINT payments_order_known REFERENCES orders,
    channel      text        NOT NULL CONSTRAINT payments_channel_fits CHECK (channel ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    amount_cents bigint      NOT NULL CONSTRAINT payments_amount_range CHECK (amount_cents >= 0),
    currency     text        NOT NULL CONSTRAINT payments_currency_fits CHECK (currency ~ '^[A-Z]{3}$'),
    status       text        NOT NULL DEFAULT 'created' CONSTRAINT payments_status_known
                             CHECK (status IN ('created', 'sending', 'waiting', 'succeeded', 'failed', 'abandoned')),
    -- Whether this is the one that paid its order.
    pays         boolean     NOT NULL DEFAULT false,
    -- Why it failed, in the channel's words.
    reason       text,
    -- Which claim of it holds: a sender that comes back from the dead finds a higher one.
    claim        integer     NOT NULL DEFAULT 0,
    -- Whether a request of it may still be on its way, although the channel did not know it when it was asked.
    unsure       boolean     NOT NULL DEFAULT false,
    -- When the channel is asked, should it not have said by then; and how often it was.
    ask_at       timestamptz,
    asked        integer     NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    sent_at      timestamptz,
    ended_at     timestamptz,
    CONSTRAINT payments_pays_with_money CHECK (NOT pays OR status = 'succeeded'),
    CONSTRAINT payments_ask_fits CHECK ((status IN ('sending', 'waiting')) = (ask_at IS NOT NULL)),
    CONSTRAINT payments_end_fits CHECK ((status IN ('succeeded', 'failed', 'abandoned')) = (ended_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX payments_of_order ON payments (order_id);
-- One at a time under way for an order, and one at most that ever paid it.
CREATE UNIQUE INDEX payments_one_live ON payments (order_id) WHERE status IN ('created', 'sending', 'waiting');
CREATE UNIQUE INDEX payments_one_pays ON payments (order_id) WHERE pays;
CREATE INDEX payments_to_ask ON payments (ask_at) WHERE ask_at IS NOT NULL;
CREATE INDEX payments_created ON payments (created_at) WHERE status = 'created';

-- refunds:  requested -> succeeded | failed;  failed -> requested by hand, under a new key
CREATE TABLE refunds (
    id           uuid PRIMARY KEY,
    -- Permanent: money goes back once.
    payment_id   uuid        NOT NULL CONSTRAINT refunds_once UNIQUE REFERENCES payments,
    order_id     uuid        NOT NULL REFERENCES orders,
    channel      text        NOT NULL,
    amount_cents bigint      NOT NULL CONSTRAINT refunds_amount_range CHECK (amount_cents >= 0),
    currency     text        NOT NULL CONSTRAINT refunds_currency_fits CHECK (currency ~ '^[A-Z]{3}$'),
    cause        text        NOT NULL CONSTRAINT refunds_cause_known
                             CHECK (cause IN ('asked', 'order-ended', 'order-already-paid')),
    -- Whoever asked, and in which words.
    asked_by     text        NOT NULL,
    reason       text        NOT NULL CONSTRAINT refunds_reason_length CHECK (length(reason) <= 500),
    status       text        NOT NULL DEFAULT 'requested' CONSTRAINT refunds_status_known
                             CHECK (status IN ('requested', 'succeeded', 'failed')),
    -- The Idempotency-Key that the channel sees, and the item's id in the outflow. Another one only after the channel
    -- has said that this one failed.
    key          uuid        NOT NULL CONSTRAINT refunds_key_once UNIQUE,
    -- Whether it is in the outflow: one that found it full is brought again.
    queued       boolean     NOT NULL,
    asked_at     timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    CONSTRAINT refunds_end_fits CHECK ((status = 'requested') = (ended_at IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX refunds_of_order ON refunds (order_id);
CREATE INDEX refunds_under_way ON refunds (created_at) WHERE status = 'requested';
CREATE INDEX refunds_to_queue ON refunds (channel, created_at) WHERE status = 'requested' AND NOT queued;
CREATE INDEX refunds_failed ON refunds (created_at) WHERE status = 'failed';

-- The legal steps of both, held as an order's are.
CREATE TABLE money_status_steps (
    what        text NOT NULL,
    from_status text NOT NULL,
    to_status   text NOT NULL,
    PRIMARY KEY (what, from_status, to_status)
);
INSERT INTO money_status_steps (what, from_status, to_status) VALUES
    ('payments', 'created', 'sending'),
    ('payments', 'created', 'abandoned'),
    ('payments', 'created', 'succeeded'),
    ('payments', 'created', 'failed'),
    ('payments', 'sending', 'created'),
    ('payments', 'sending', 'waiting'),
    ('payments', 'sending', 'succeeded'),
    ('payments', 'sending', 'failed'),
    ('payments', 'sending', 'abandoned'),
    ('payments', 'waiting', 'created'),
    ('payments', 'waiting', 'abandoned'),
    ('payments', 'waiting', 'succeeded'),
    ('payments', 'waiting', 'failed'),
    ('payments', 'failed', 'succeeded'),
    ('payments', 'abandoned', 'succeeded'),
    ('refunds', 'requested', 'succeeded'),
    ('refunds', 'requested', 'failed'),
    ('refunds', 'failed', 'requested'),
    ('refunds', 'failed', 'succeeded');

CREATE FUNCTION hold_money_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status <> NEW.status AND NOT EXISTS (
        SELECT FROM money_status_steps
        WHERE what = TG_TABLE_NAME AND from_status = OLD.status AND to_status = NEW.status) THEN
        RAISE EXCEPTION '% % may not go from % to %', TG_TABLE_NAME, NEW.id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_legal_step';
    END IF;
    IF (OLD.amount_cents, OLD.currency, OLD.order_id) IS DISTINCT FROM (NEW.amount_cents, NEW.currency, NEW.order_id) THEN
        RAISE EXCEPTION '% % may not change what it is about', TG_TABLE_NAME, NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_unchanging';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER payments_step BEFORE UPDATE ON payments FOR EACH ROW EXECUTE FUNCTION hold_money_step();
CREATE TRIGGER refunds_step BEFORE UPDATE ON refunds FOR EACH ROW EXECUTE FUNCTION hold_money_step();

-- The books: every movement of money is one row that names both of its sides, so that they balance by their nature.
--   payment     channel:X    <- sales          money came and paid an order
--   payment     channel:X    <- refunds-due    money came, and no order waits for it
--   refund_due  sales        <- refunds-due    a paid order is to be refunded
--   refund      refunds-due  <- channel:X      the channel has given it back
CREATE TABLE journal (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT now(),
    entry        text        NOT NULL
                             CONSTRAINT journal_entry_known CHECK (entry IN ('payment', 'refund_due', 'refund')),
    -- The payment, or the refund.
    subject      uuid        NOT NULL,
    order_id     uuid        NOT NULL,
    debit        text        NOT NULL,
    credit       text        NOT NULL,
    amount_cents bigint      NOT NULL CONSTRAINT journal_amount_range CHECK (amount_cents >= 0),
    currency     text        NOT NULL,
    CONSTRAINT journal_once UNIQUE (entry, subject),
    CONSTRAINT journal_two_sides CHECK (debit <> credit)
);
CREATE INDEX journal_of_order ON journal (order_id);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is only ever appended to', TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_append_only';
END $$;
CREATE TRIGGER journal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON journal
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Callbacks whose signature is good and whose contents do not fit: for people to look at.
CREATE TABLE callbacks_set_aside (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    channel    text        NOT NULL,
    message_id text        NOT NULL,
    problem    text        NOT NULL,
    body       text        NOT NULL CONSTRAINT callbacks_set_aside_body_size CHECK (length(body) <= 16384),
    settled_at timestamptz,
    CONSTRAINT callbacks_set_aside_once UNIQUE (channel, message_id)
);
CREATE INDEX callbacks_set_aside_open ON callbacks_set_aside (at) WHERE settled_at IS NULL;

-- The pace at which payments leave, for the whole cluster: slots are claimed here at dispatch, a few at a time
-- (docs/outflow.md has the argument; a hundred claims a second are not needed where one claims several slots).
CREATE TABLE payment_pace (
    channel   text PRIMARY KEY,
    rate      integer     NOT NULL CONSTRAINT payment_pace_rate_range CHECK (rate BETWEEN 1 AND 10000),
    jitter_ms integer     NOT NULL CONSTRAINT payment_pace_jitter_range CHECK (jitter_ms BETWEEN 0 AND 10000),
    gap_us    bigint      NOT NULL CONSTRAINT payment_pace_gap_fits
                          CHECK (gap_us * rate > 1000000 + jitter_ms * 1000::bigint),
    next_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- An order whose payment began in time waits for its outcome until then (protocol, rule 8).
ALTER TABLE orders ADD COLUMN wait_until timestamptz,
    -- Refunded, and not put up for sale again.
    ADD COLUMN units_kept boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT orders_units_kept_fits CHECK (NOT units_kept OR status = 'refunded');
ALTER TABLE sales ADD COLUMN refund_returns_stock boolean NOT NULL DEFAULT true;

-- A payment's way to its channel begins in the outbox; its order_id is the payment's id.
ALTER TABLE outbox
    DROP CONSTRAINT outbox_kind_known,
    ADD CONSTRAINT outbox_kind_known CHECK
        (kind IN ('order_placed', 'order_expire', 'hold_release', 'wave_release', 'payment_requested'));
DROP INDEX outbox_to_send;
CREATE INDEX outbox_to_send ON outbox (next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('order_placed', 'order_expire', 'payment_requested');
CREATE INDEX outbox_unsettled_payments ON outbox (sent_at) WHERE status = 'sent' AND kind = 'payment_requested';
