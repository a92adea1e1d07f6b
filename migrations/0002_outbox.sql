-- The outbox: work that a transaction leaves for others, durable with its commit. The relay sends it to RabbitMQ, and the
-- releaser carries it out in Redis. Beside it are the two tables that make a repeated or lost message harmless.

-- Kind, and what order_id means:
--
--   order_placed       the purchase row: one winner's claim, durable before the 202. RabbitMQ carries it to fulfilment.
--   order_expire       asks at due_at to cancel the unpaid order. RabbitMQ's delay ladder carries it.
--   hold_release       gives the hold of an ended order back to Redis. The releaser carries it out.
--   wave_release       gives a wave's units to Redis. order_id is the wave's id.
--   payment_requested  sends a payment to its channel. order_id is the payment's id.
--   group_placed       the purchases of a group row are to become orders. order_id is the group's id.
--   group_expire       asks at due_at to cancel the unpaid orders of a group. order_id is the group's id.
--   group_release      gives the holds of the orders in `members` back to Redis. order_id is made for the row.
--
-- In rows of groups, quantity is the sum of the units.
--
--   pending -> sent -> processed      the releaser's kinds skip `sent`
--   pending | sent -> parked          at the cap of attempts; `seckill outbox retry` makes it pending again
CREATE TABLE outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind            text        NOT NULL CONSTRAINT outbox_kind_known CHECK (kind IN ('order_placed', 'order_expire',
                                    'hold_release', 'wave_release', 'payment_requested', 'group_placed', 'group_expire',
                                    'group_release')),
    order_id        uuid        NOT NULL,
    sale_id         bigint      NOT NULL,
    user_id         text        NOT NULL,
    quantity        integer     NOT NULL CONSTRAINT outbox_quantity_positive CHECK (quantity > 0),
    epoch           bigint      NOT NULL,
    shard           smallint    NOT NULL,
    due_at          timestamptz,
    -- Whether a release makes the units available again, or only ends the hold.
    returns_units   boolean,
    status          text        NOT NULL DEFAULT 'pending'
                                CONSTRAINT outbox_status_known CHECK (status IN ('pending', 'sent', 'processed', 'parked')),
    attempts        integer     NOT NULL DEFAULT 0 CONSTRAINT outbox_attempts_range CHECK (attempts >= 0),
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    sent_at         timestamptz,
    processed_at    timestamptz,
    -- The network address of a purchase, as the limits see it. NULL if the reconciler finished the hold.
    address         text,
    -- The trace of the step that wrote an order_placed or a payment_requested, which its message carries on: a W3C
    -- traceparent of 55 characters, a space, and a tracestate of at most 512 (docs/tracing.md). NULL if not sampled.
    trace           varchar(568),
    members         uuid[],
    -- A purchase is committed once, however often its statement is repeated.
    CONSTRAINT outbox_once UNIQUE (kind, order_id),
    CONSTRAINT outbox_due_at_fits CHECK ((kind IN ('order_expire', 'group_expire')) = (due_at IS NOT NULL)),
    CONSTRAINT outbox_returns_fits CHECK ((kind IN ('hold_release', 'group_release')) = (returns_units IS NOT NULL)),
    CONSTRAINT outbox_members_fit CHECK ((kind = 'group_release') = (members IS NOT NULL)),
    CONSTRAINT outbox_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL)
-- Rows change their status two or three times.
) WITH (fillfactor = 70);

-- Each reader has an index of its own. A row leaves it as its status moves on, so each stays as small as its backlog, and
-- one reader's backlog does not slow another.
-- For the relay: messages to send.
CREATE INDEX outbox_to_send ON outbox (next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('order_placed', 'order_expire', 'payment_requested');
-- For the releaser: calls of Redis.
CREATE INDEX outbox_to_release ON outbox (next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('hold_release', 'wave_release');
-- For both: rows of groups, kind by kind.
CREATE INDEX outbox_groups_to_do ON outbox (kind, next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('group_placed', 'group_expire', 'group_release');
-- For the sweeper: messages that may be lost. An expiry is late only after due_at.
CREATE INDEX outbox_unsettled_purchases ON outbox (sent_at) WHERE status = 'sent' AND kind = 'order_placed';
CREATE INDEX outbox_unsettled_expiries ON outbox (due_at) WHERE status = 'sent' AND kind = 'order_expire';
CREATE INDEX outbox_unsettled_payments ON outbox (sent_at) WHERE status = 'sent' AND kind = 'payment_requested';
CREATE INDEX outbox_groups_sent ON outbox (kind, sent_at)
    WHERE status = 'sent' AND kind IN ('group_placed', 'group_expire');
-- For people: `seckill outbox`, the console, the alarm.
CREATE INDEX outbox_parked ON outbox (id) WHERE status = 'parked';
-- For lists of purchases without an order, of a buyer and of a sale.
CREATE INDEX outbox_purchases_of_user ON outbox (user_id, sale_id)
    WHERE kind = 'order_placed' AND status <> 'processed';
CREATE INDEX outbox_purchases_of_sale ON outbox (sale_id)
    WHERE kind = 'order_placed' AND status <> 'processed';

-- A consumer inserts a message's id in the transaction that processes it. A second delivery finds it and does nothing.
CREATE TABLE processed_messages (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer)
);
-- For retention, and for the console: when a worker last processed a message.
CREATE INDEX processed_messages_by_age ON processed_messages (processed_at);

-- Marks that have passed through a queue. A queue delivers in order. So when a mark has passed, an earlier message was
-- delivered, unless the broker lost it: then the sweeper sends it again.
CREATE TABLE queue_marks (
    queue        text        NOT NULL,
    published_at timestamptz NOT NULL,
    passed_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (queue, published_at)
);
