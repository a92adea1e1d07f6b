-- What is still to be carried out, and what has been.
--
--   order_placed  the purchase row: a winner's claim, durable before the 202. Carried by RabbitMQ to fulfilment.
--   order_expire  asks for the order's cancellation at due_at. Carried by RabbitMQ's delay ladder.
--   hold_release  gives an ended order's hold back to Redis. Carried out by the releaser itself.
--
--   pending -> sent -> processed      sent is skipped by what does not travel
--   pending | sent -> parked          at the cap of attempts; `seckill outbox retry` makes it pending again

CREATE TABLE outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind            text        NOT NULL
                                CONSTRAINT outbox_kind_known CHECK (kind IN ('order_placed', 'order_expire', 'hold_release')),
    order_id        uuid        NOT NULL,
    sale_id         bigint      NOT NULL,
    user_id         text        NOT NULL,
    quantity        integer     NOT NULL CONSTRAINT outbox_quantity_positive CHECK (quantity > 0),
    epoch           bigint      NOT NULL,
    shard           smallint    NOT NULL,
    due_at          timestamptz,
    returns_units   boolean,
    status          text        NOT NULL DEFAULT 'pending'
                                CONSTRAINT outbox_status_known CHECK (status IN ('pending', 'sent', 'processed', 'parked')),
    attempts        integer     NOT NULL DEFAULT 0 CONSTRAINT outbox_attempts_range CHECK (attempts >= 0),
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    sent_at         timestamptz,
    processed_at    timestamptz,
    CONSTRAINT outbox_once UNIQUE (kind, order_id),
    CONSTRAINT outbox_due_at_fits CHECK ((kind = 'order_expire') = (due_at IS NOT NULL)),
    CONSTRAINT outbox_returns_fits CHECK ((kind = 'hold_release') = (returns_units IS NOT NULL)),
    CONSTRAINT outbox_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL)
) WITH (fillfactor = 70);

-- Small however many rows there are: a row leaves each of them as it moves on.
CREATE INDEX outbox_to_send ON outbox (next_attempt_at, id) WHERE status = 'pending';
CREATE INDEX outbox_unsettled ON outbox (kind, sent_at) WHERE status = 'sent';
CREATE INDEX outbox_parked ON outbox (id) WHERE status = 'parked';
CREATE INDEX outbox_purchases_of_user ON outbox (user_id, sale_id)
    WHERE kind = 'order_placed' AND status <> 'processed';
CREATE INDEX outbox_purchases_of_sale ON outbox (sale_id)
    WHERE kind = 'order_placed' AND status <> 'processed';

-- A message is processed in the transaction that writes its row here, so once.
CREATE TABLE processed_messages (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer)
);
CREATE INDEX processed_messages_by_age ON processed_messages (processed_at);
