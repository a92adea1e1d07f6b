-- What the shop is still to hear of: a row for each step of an order, written in the step's transaction, gone when the
-- shop's webhook has taken it.
--
-- Within an order they are told one after another: a later one waits until the earlier one is told, parked or not.
--
--   pending -> (gone)      told
--   pending -> parked      at the cap of attempts; `seckill outbox retry` makes it pending again

-- Whether there is a shop that listens, set by the worker `shop` when it starts. A shop that is added later does not get
-- the past.
CREATE TABLE shop (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT shop_single CHECK (one),
    listens boolean NOT NULL
);
INSERT INTO shop (listens) VALUES (false);

CREATE TABLE order_events (
    order_id        uuid        NOT NULL,
    step_id         bigint      NOT NULL,
    -- Drawn together with the outbox's, so that `seckill outbox retry ID` can mean one row only.
    id              bigint      NOT NULL DEFAULT nextval('outbox_id_seq'),
    status          text        NOT NULL DEFAULT 'pending'
                                CONSTRAINT order_events_status_known CHECK (status IN ('pending', 'parked')),
    -- Counted at the shop's failures, never at ours.
    attempts        integer     NOT NULL DEFAULT 0 CONSTRAINT order_events_attempts_range CHECK (attempts >= 0),
    -- Which claim of it holds: a teller that comes back from the dead finds a higher one.
    claims          integer     NOT NULL DEFAULT 0 CONSTRAINT order_events_claims_range CHECK (claims >= 0),
    -- While it is being told, when whoever tells it is taken for dead. Of a parked one, and of those that wait behind it,
    -- the end of days: nobody looks at them.
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, step_id),
    CONSTRAINT order_events_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL),
    CONSTRAINT order_events_parked_rests CHECK (status <> 'parked' OR next_attempt_at = 'infinity')
) WITH (fillfactor = 70);
CREATE INDEX order_events_to_tell ON order_events (next_attempt_at, step_id);
CREATE INDEX order_events_parked ON order_events (id) WHERE status = 'parked';

CREATE FUNCTION note_order_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO order_events (order_id, step_id) SELECT NEW.order_id, NEW.id FROM shop WHERE listens;
    RETURN NULL;
END $$;
CREATE TRIGGER order_steps_event AFTER INSERT ON order_steps FOR EACH ROW EXECUTE FUNCTION note_order_event();
