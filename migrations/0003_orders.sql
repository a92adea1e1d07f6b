-- Orders and their legal steps (docs/protocol.md draws them), the buyers' counters, lapsed holds, and the events for
-- the shop's webhook. Triggers hold the state machine and write the steps, so no statement can bypass them.

CREATE TABLE orders (
    id           uuid PRIMARY KEY,
    sale_id      bigint      NOT NULL REFERENCES sales,
    user_id      text        NOT NULL,
    quantity     integer     NOT NULL CONSTRAINT orders_quantity_positive CHECK (quantity > 0),
    amount_cents bigint      NOT NULL CONSTRAINT orders_amount_range CHECK (amount_cents >= 0),
    currency     text        NOT NULL CONSTRAINT orders_currency_fits CHECK (currency ~ '^[A-Z]{3}$'),
    shard        smallint    NOT NULL DEFAULT 0,
    status       text        NOT NULL CONSTRAINT orders_status_known CHECK (status IN
                     ('pending_payment', 'paid', 'refunding', 'refunded', 'cancelled', 'rejected')),
    reason       text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    -- An order whose payment began in time waits for the outcome until then (protocol, rule 8).
    wait_until   timestamptz,
    -- Refunded, and its units are not for sale again.
    units_kept   boolean     NOT NULL DEFAULT false,
    -- The trace of the step that made the order, as in the outbox. Its payments and webhooks continue it.
    trace        varchar(568),
    -- The group that it was made from. The auditor compares the two, and a lapsed hold takes its address from there. No
    -- foreign key: retention clears groups, and orders stay.
    group_id     uuid        NOT NULL,
    CONSTRAINT orders_reason_fits CHECK (
        CASE status WHEN 'cancelled' THEN reason IN ('expired', 'by-buyer')
                    WHEN 'rejected'  THEN reason IN ('out-of-stock', 'over-limit')
                    ELSE reason IS NULL END),
    CONSTRAINT orders_units_kept_fits CHECK (NOT units_kept OR status = 'refunded')
) WITH (fillfactor = 80);
-- For lists, of a buyer, of a sale, and of all sales by status: the newest orders are the newest of each status.
CREATE INDEX orders_of_user ON orders (user_id, sale_id, created_at DESC);
CREATE INDEX orders_of_sale ON orders (sale_id, created_at);
CREATE INDEX orders_by_status ON orders (status, created_at, id);
-- For the sweeper: overdue orders whose expiry was lost.
CREATE INDEX orders_unpaid ON orders (expires_at) WHERE status = 'pending_payment';
-- For retention: a sale with such an order is not cleared. Without it, the search would read all orders of the sale.
CREATE INDEX orders_unsettled ON orders (sale_id) WHERE status IN ('pending_payment', 'refunding');

-- The legal steps. `accepted` is a purchase without an order. A unit test compares them with domain::order.
CREATE TABLE order_status_steps (
    from_status text NOT NULL,
    to_status   text NOT NULL,
    PRIMARY KEY (from_status, to_status)
);
INSERT INTO order_status_steps (from_status, to_status) VALUES
    ('accepted', 'pending_payment'),
    ('accepted', 'rejected'),
    ('pending_payment', 'paid'),
    ('pending_payment', 'cancelled'),
    ('paid', 'refunding'),
    ('refunding', 'refunded');

-- Every status of an order, in order. Only the two triggers below write it.
CREATE TABLE order_steps (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id    uuid        NOT NULL,
    from_status text,
    to_status   text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT now()
);
-- For the history of an order.
CREATE INDEX order_steps_of_order ON order_steps (order_id, id);

-- New orders: one statement writes the steps of all orders of a statement. Fulfilment makes hundreds at once, and a call for
-- each row would cost more than the rows.
CREATE FUNCTION record_new_orders() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    illegal record;
BEGIN
    SELECT m.id, m.status INTO illegal FROM made m
    WHERE NOT EXISTS (SELECT FROM order_status_steps l WHERE l.from_status = 'accepted' AND l.to_status = m.status) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'order % may not go from accepted to %', illegal.id, illegal.status
            USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_legal_step';
    END IF;
    INSERT INTO order_steps (order_id, from_status, to_status) SELECT m.id, 'accepted', m.status FROM made m;
    RETURN NULL;
END $$;
CREATE TRIGGER orders_made AFTER INSERT ON orders REFERENCING NEW TABLE AS made
    FOR EACH STATEMENT EXECUTE FUNCTION record_new_orders();

-- Changes of the status: for each row, because it sets updated_at, and because a trigger with a transition table cannot be
-- bound to a column.
CREATE FUNCTION record_order_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status = NEW.status THEN RETURN NEW; END IF;
    IF NOT EXISTS (SELECT FROM order_status_steps WHERE from_status = OLD.status AND to_status = NEW.status) THEN
        RAISE EXCEPTION 'order % may not go from % to %', NEW.id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_legal_step';
    END IF;
    NEW.updated_at := now();
    INSERT INTO order_steps (order_id, from_status, to_status) VALUES (NEW.id, OLD.status, NEW.status);
    RETURN NEW;
END $$;
CREATE TRIGGER orders_step BEFORE UPDATE OF status ON orders
    FOR EACH ROW EXECUTE FUNCTION record_order_step();
-- Its payments and refunds are of this amount.
CREATE TRIGGER orders_amount_fixed BEFORE UPDATE OF amount_cents, currency ON orders FOR EACH ROW
    WHEN ((NEW.amount_cents, NEW.currency) IS DISTINCT FROM (OLD.amount_cents, OLD.currency))
    EXECUTE FUNCTION refuse_other_value('the amount');

-- The units that each buyer holds of each sale: the database's own check of the limit per user. No foreign key to the sale:
-- it would lock the sale's row for each counter. The order beside each counter has one, and only fulfilment makes counters.
CREATE TABLE sale_buyers (
    sale_id  bigint  NOT NULL,
    user_id  text    NOT NULL,
    units    integer NOT NULL,
    per_user integer NOT NULL,
    PRIMARY KEY (sale_id, user_id),
    CONSTRAINT sale_buyers_within_limit CHECK (units BETWEEN 0 AND per_user)
) WITH (fillfactor = 80);

-- Holds that were not paid in time, with buyer and network address. For the sale's manager, and for a refill: a buyer with
-- several of them waits before the next hold (protocol, rule 17).
CREATE TABLE lapsed_holds (
    order_id  uuid        PRIMARY KEY,
    sale_id   bigint      NOT NULL,
    user_id   text        NOT NULL,
    address   text,
    quantity  integer     NOT NULL,
    lapsed_at timestamptz NOT NULL DEFAULT now()
);
-- For both readers.
CREATE INDEX lapsed_holds_of_sale ON lapsed_holds (sale_id, user_id);

-- One row: whether a shop's webhook is configured. The worker `shop` sets it at its start. A shop that is added later does
-- not get past events.
CREATE TABLE shop (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT shop_single CHECK (one),
    listens boolean NOT NULL
);
INSERT INTO shop (listens) VALUES (false);

-- Events that the shop has not taken yet: one for each step, written in the step's transaction. The events of an order are
-- told one after another; a later one waits behind an earlier one, also behind a parked one.
--
--   pending -> (deleted)   told
--   pending -> parked      at the cap of attempts; `seckill outbox retry` makes it pending again
CREATE TABLE order_events (
    order_id        uuid        NOT NULL,
    step_id         bigint      NOT NULL,
    -- From the outbox's sequence, so that `seckill outbox retry ID` means one row.
    id              bigint      NOT NULL DEFAULT nextval('outbox_id_seq'),
    status          text        NOT NULL DEFAULT 'pending'
                                CONSTRAINT order_events_status_known CHECK (status IN ('pending', 'parked')),
    -- Counts the shop's failures, never ours.
    attempts        integer     NOT NULL DEFAULT 0 CONSTRAINT order_events_attempts_range CHECK (attempts >= 0),
    -- The number of the present claim. A sender whose lease has ended finds a higher one.
    claims          integer     NOT NULL DEFAULT 0 CONSTRAINT order_events_claims_range CHECK (claims >= 0),
    -- While the event is being told: the end of the lease. Infinity for a parked one and the events behind it, so that no
    -- reader finds them.
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, step_id),
    CONSTRAINT order_events_parked_says_why CHECK (status <> 'parked' OR last_error IS NOT NULL),
    CONSTRAINT order_events_parked_rests CHECK (status <> 'parked' OR next_attempt_at = 'infinity')
) WITH (fillfactor = 70);
-- For the worker `shop`.
CREATE INDEX order_events_to_tell ON order_events (next_attempt_at, step_id);
-- For people, as outbox_parked.
CREATE INDEX order_events_parked ON order_events (id) WHERE status = 'parked';

CREATE FUNCTION note_order_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO order_events (order_id, step_id) SELECT n.order_id, n.id FROM noted n WHERE (SELECT listens FROM shop);
    RETURN NULL;
END $$;
CREATE TRIGGER order_steps_events AFTER INSERT ON order_steps REFERENCING NEW TABLE AS noted
    FOR EACH STATEMENT EXECUTE FUNCTION note_order_events();
