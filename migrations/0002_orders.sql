-- Orders and their legal steps. docs/order-states.md draws them; the trigger below holds them.

CREATE TABLE orders (
    id           uuid PRIMARY KEY,
    sale_id      bigint      NOT NULL REFERENCES sales,
    user_id      text        NOT NULL,
    quantity     integer     NOT NULL CONSTRAINT orders_quantity_positive CHECK (quantity > 0),
    amount_cents bigint      NOT NULL CONSTRAINT orders_amount_range CHECK (amount_cents >= 0),
    shard        smallint    NOT NULL DEFAULT 0,
    status       text        NOT NULL CONSTRAINT orders_status_known CHECK (status IN
                     ('pending_payment', 'paid', 'refunding', 'refunded', 'cancelled', 'rejected')),
    reason       text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT orders_reason_fits CHECK (
        CASE status WHEN 'cancelled' THEN reason IN ('expired', 'by-buyer')
                    WHEN 'rejected'  THEN reason IN ('out-of-stock', 'over-limit')
                    ELSE reason IS NULL END)
) WITH (fillfactor = 80);

CREATE INDEX orders_of_user ON orders (user_id, sale_id, created_at DESC);
CREATE INDEX orders_of_sale ON orders (sale_id, created_at);
CREATE INDEX orders_unpaid ON orders (expires_at) WHERE status = 'pending_payment';

-- Every status an order ever had, in order. Written by the trigger alone.
CREATE TABLE order_steps (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id    uuid        NOT NULL,
    from_status text,
    to_status   text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX order_steps_of_order ON order_steps (order_id, id);

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

CREATE FUNCTION record_order_step() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before text := 'accepted';
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF OLD.status = NEW.status THEN RETURN NEW; END IF;
        before := OLD.status;
    END IF;
    IF NOT EXISTS (SELECT FROM order_status_steps WHERE from_status = before AND to_status = NEW.status) THEN
        RAISE EXCEPTION 'order % may not go from % to %', NEW.id, before, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_legal_step';
    END IF;
    NEW.updated_at := now();
    INSERT INTO order_steps (order_id, from_status, to_status) VALUES (NEW.id, before, NEW.status);
    RETURN NEW;
END $$;

CREATE TRIGGER orders_step BEFORE INSERT OR UPDATE OF status ON orders
    FOR EACH ROW EXECUTE FUNCTION record_order_step();
