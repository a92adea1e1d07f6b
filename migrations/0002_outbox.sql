-- The outbox: work that a transaction leaves for others, durable with its commit. The relay sends it to RabbitMQ, and the
-- releaser carries it out in Redis. Beside it are the two tables that make a repeated or lost message harmless.

-- Kind, and what order_id means:
--
--   group_placed       the purchases of a group become orders. order_id is the group's id. RabbitMQ carries it to fulfilment.
--   group_expire       cancels at due_at the unpaid orders of a group, or one order of it. order_id is the id of either.
--                      RabbitMQ's delay ladder carries it.
--   hold_release       gives the holds of the ended orders in `members` back to Redis. The releaser carries it out. order_id is
--                      the order's id, or is made for the row where several orders ended together.
--   wave_release       gives a wave's units to Redis. order_id is the wave's id.
--   payment_requested  sends a payment to its channel. order_id is the payment's id.
--
-- In rows about several orders, quantity is the sum of the units.
--
--   pending -> sent -> processed      the releaser's kinds skip `sent`
--   pending | sent -> parked          at the cap of attempts; `seckill outbox retry` makes it pending again
CREATE TABLE outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind            text        NOT NULL CONSTRAINT outbox_kind_known CHECK (kind IN ('group_placed', 'group_expire',
                                    'hold_release', 'wave_release', 'payment_requested')),
    order_id        uuid        NOT NULL,
    sale_id         bigint      NOT NULL,
    quantity        integer     NOT NULL CONSTRAINT outbox_quantity_positive CHECK (quantity > 0),
    shard           smallint    NOT NULL,
    due_at          timestamptz,
    -- Whether a release makes the units available again, or only ends the hold.
    returns_units   boolean,
    members         uuid[],
    status          text        NOT NULL DEFAULT 'pending'
                                CONSTRAINT outbox_status_known CHECK (status IN ('pending', 'sent', 'processed', 'parked')),
    attempts        integer     NOT NULL DEFAULT 0 CONSTRAINT outbox_attempts_range CHECK (attempts >= 0),
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    sent_at         timestamptz,
    processed_at    timestamptz,
    -- The trace of the step that wrote a group_placed or a payment_requested, which its message carries on: a W3C
    -- traceparent of 55 characters, a space, and a tracestate of at most 512 (docs/monitoring.md). NULL if not sampled.
    trace           varchar(568),
    -- What is asked for once is asked for once, however often its statement is repeated.
    CONSTRAINT outbox_once UNIQUE (kind, order_id),
    CONSTRAINT outbox_due_at_fits CHECK ((kind = 'group_expire') = (due_at IS NOT NULL)),
    CONSTRAINT outbox_returns_fits CHECK ((kind = 'hold_release') = (returns_units IS NOT NULL)),
    CONSTRAINT outbox_members_fit CHECK ((kind = 'hold_release') = (members IS NOT NULL)),
    CONSTRAINT outbox_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL)
-- Rows change their status two or three times.
) WITH (fillfactor = 70);

-- A row leaves these indexes as its status moves on, so each stays as small as its backlog.
-- For relay, releaser and alarms, kind by kind: one kind's backlog does not slow another.
CREATE INDEX outbox_due ON outbox (kind, next_attempt_at, id) WHERE status = 'pending';
-- For the sweeper: messages that may be lost. An expiry is late only after due_at.
CREATE INDEX outbox_sent ON outbox (kind, sent_at) WHERE status = 'sent' AND kind IN ('group_placed', 'payment_requested');
CREATE INDEX outbox_sent_expiries ON outbox (due_at) WHERE status = 'sent' AND kind = 'group_expire';
-- For people: `seckill outbox`, the console, the alarm.
CREATE INDEX outbox_parked ON outbox (id) WHERE status = 'parked';

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
