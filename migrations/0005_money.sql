-- Money: payments through a channel, refunds, and the journal (docs/payments.md). A table of legal steps holds both state
-- machines. A payment of any status becomes succeeded when its channel says that it took the money; if no order waits for
-- it, it is refunded.

-- created -> sending -> waiting -> succeeded | failed
-- created -> abandoned      its order ended before a request was sent
-- created -> waiting        its order ended, and an earlier request may have reached the channel: the channel is asked
-- sending -> created        nothing was sent, or the channel does not know it
CREATE TABLE payments (
    -- Also the Idempotency-Key that the channel sees.
    id           uuid PRIMARY KEY,
    order_id     uuid        NOT NULL CONSTRAINT payments_order_known REFERENCES orders,
    channel      text        NOT NULL CONSTRAINT payments_channel_fits CHECK (channel ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    amount_cents bigint      NOT NULL CONSTRAINT payments_amount_range CHECK (amount_cents >= 0),
    currency     text        NOT NULL CONSTRAINT payments_currency_fits CHECK (currency ~ '^[A-Z]{3}$'),
    status       text        NOT NULL DEFAULT 'created' CONSTRAINT payments_status_known
                             CHECK (status IN ('created', 'sending', 'waiting', 'succeeded', 'failed', 'abandoned')),
    -- Whether this payment paid its order.
    pays         boolean     NOT NULL DEFAULT false,
    -- Why it failed, in the channel's words.
    reason       text,
    -- The number of the present claim. A sender whose claim was taken back finds a higher one.
    claim        integer     NOT NULL DEFAULT 0,
    -- Whether a request may still be in flight, although the channel did not know the payment when it was asked.
    unsure       boolean     NOT NULL DEFAULT false,
    -- When the channel is asked next if it has not reported, and how often it was asked.
    ask_at       timestamptz,
    asked        integer     NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    sent_at      timestamptz,
    ended_at     timestamptz,
    -- If it failed while its order waited: its place among the steps of the order, for those who follow the order.
    failed_step  bigint,
    -- An order that costs nothing is paid at once, and no bank is asked.
    CONSTRAINT payments_free_fits CHECK ((amount_cents = 0) = (channel = 'none')),
    CONSTRAINT payments_free_is_paid CHECK (amount_cents > 0 OR status = 'succeeded' AND pays),
    CONSTRAINT payments_pays_with_money CHECK (NOT pays OR status = 'succeeded'),
    CONSTRAINT payments_ask_fits CHECK ((status IN ('sending', 'waiting')) = (ask_at IS NOT NULL)),
    CONSTRAINT payments_end_fits CHECK ((status IN ('succeeded', 'failed', 'abandoned')) = (ended_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX payments_of_order ON payments (order_id);
-- An order has at most one payment in flight, and at most one that paid it.
CREATE UNIQUE INDEX payments_one_live ON payments (order_id) WHERE status IN ('created', 'sending', 'waiting');
CREATE UNIQUE INDEX payments_one_pays ON payments (order_id) WHERE pays;
-- For those who follow an order: failures among its steps.
CREATE INDEX payments_failed_of_order ON payments (order_id, failed_step) WHERE failed_step IS NOT NULL;
-- For the status queries of one channel.
CREATE INDEX payments_to_ask ON payments (channel, ask_at) WHERE ask_at IS NOT NULL;
-- For number and age of the payments not sent. The odd expression reserves it for them: by the plain comparison PostgreSQL
-- would also choose it to find one payment, and read the whole backlog.
CREATE INDEX payments_not_sent ON payments (created_at) WHERE status || '' = 'created';
-- For the sweeper: payments that were taken back and may have no message.
CREATE INDEX payments_taken_back ON payments (id) WHERE status = 'created' AND claim > 0;
-- For the console: payments that moved no money. Ids rise with time, so the primary key lists all payments.
CREATE INDEX payments_without_money ON payments (id) WHERE status IN ('failed', 'abandoned');

-- requested -> succeeded | failed;  failed -> requested by hand, under a new key
CREATE TABLE refunds (
    id           uuid PRIMARY KEY,
    -- Money goes back once.
    payment_id   uuid        NOT NULL CONSTRAINT refunds_once UNIQUE REFERENCES payments,
    order_id     uuid        NOT NULL REFERENCES orders,
    channel      text        NOT NULL,
    amount_cents bigint      NOT NULL CONSTRAINT refunds_amount_range CHECK (amount_cents >= 0),
    currency     text        NOT NULL CONSTRAINT refunds_currency_fits CHECK (currency ~ '^[A-Z]{3}$'),
    cause        text        NOT NULL CONSTRAINT refunds_cause_known
                             CHECK (cause IN ('asked', 'order-ended', 'order-already-paid')),
    -- Who asked for it, and with which words.
    asked_by     text        NOT NULL,
    reason       text        NOT NULL CONSTRAINT refunds_reason_length CHECK (length(reason) <= 500),
    status       text        NOT NULL DEFAULT 'requested' CONSTRAINT refunds_status_known
                             CHECK (status IN ('requested', 'succeeded', 'failed')),
    -- The Idempotency-Key that the channel sees, and the item's id in the outflow. It changes only after the channel has
    -- said that the refund failed.
    key          uuid        NOT NULL CONSTRAINT refunds_key_once UNIQUE,
    -- Whether it is in the outflow. A refund that found the outflow full is put in later.
    queued       boolean     NOT NULL,
    asked_at     timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    -- Nothing is given back at once.
    CONSTRAINT refunds_free_fits CHECK ((amount_cents = 0) = (channel = 'none')),
    CONSTRAINT refunds_end_fits CHECK ((status = 'requested') = (ended_at IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX refunds_of_order ON refunds (order_id);
-- For one channel: its refunds in flight, and those to put into its outflow.
CREATE INDEX refunds_of_channel ON refunds (channel, created_at) WHERE status = 'requested';
CREATE INDEX refunds_to_queue ON refunds (channel, created_at) WHERE status = 'requested' AND NOT queued;
-- For people: they repeat or settle these by hand.
CREATE INDEX refunds_failed ON refunds (created_at) WHERE status = 'failed';

CREATE TABLE money_status_steps (
    what        text NOT NULL,
    from_status text NOT NULL,
    to_status   text NOT NULL,
    PRIMARY KEY (what, from_status, to_status)
);
INSERT INTO money_status_steps (what, from_status, to_status) VALUES
    ('payments', 'created', 'sending'),
    ('payments', 'created', 'waiting'),
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

-- Holds the steps, and that amount, currency and order never change.
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

-- The books. Every movement of money is one row with both of its sides, so the books balance by their form.
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
-- For the auditor, which compares the books with a sale's orders.
CREATE INDEX journal_of_order ON journal (order_id);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is only ever appended to', TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_append_only';
END $$;
CREATE TRIGGER journal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON journal
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Callbacks with a good signature and contents that do not fit. People look at them.
CREATE TABLE callbacks_set_aside (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    channel    text        NOT NULL,
    message_id text        NOT NULL,
    problem    text        NOT NULL,
    body       text        NOT NULL CONSTRAINT callbacks_set_aside_body_size CHECK (length(body) <= 16384),
    settled_at timestamptz,
    -- A channel repeats its callbacks.
    CONSTRAINT callbacks_set_aside_once UNIQUE (channel, message_id)
);
-- For the console and the alarm.
CREATE INDEX callbacks_set_aside_open ON callbacks_set_aside (at) WHERE settled_at IS NULL;

-- The pace of payments to each channel, for the whole cluster. A dispatch claims a few slots at a time, so a channel can be
-- faster than an outflow, which claims them one by one (docs/delivery.md has the argument for slots).
CREATE TABLE payment_pace (
    channel   text PRIMARY KEY,
    rate      integer     NOT NULL CONSTRAINT payment_pace_rate_range CHECK (rate BETWEEN 1 AND 10000),
    jitter_ms integer     NOT NULL CONSTRAINT payment_pace_jitter_range CHECK (jitter_ms BETWEEN 0 AND 10000),
    gap_us    bigint      NOT NULL CONSTRAINT payment_pace_gap_fits
                          CHECK (gap_us * rate > 1000000 + jitter_ms * 1000::bigint),
    next_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
