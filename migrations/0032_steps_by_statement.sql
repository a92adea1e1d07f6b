-- One statement writes the steps of all orders that a statement has made, and one the webhook events of all steps. Fulfilment makes
-- hundreds of orders at once, and a trigger that is called for each of them costs more than the rows that it writes.
--
-- A change of the status keeps its trigger for each row: that one also sets updated_at, and a trigger that sees the rows of a
-- statement cannot be bound to a column. The function's branch for INSERT is not reached any more.
--
-- Versions of before live on it: the same rows appear, in the same transaction. An illegal step is refused when the statement ends
-- instead of at its row, with the same error; nothing of the statement stays in either case. ON CONFLICT now leaves no step of
-- an order that was not made.

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

CREATE FUNCTION note_order_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO order_events (order_id, step_id) SELECT n.order_id, n.id FROM noted n WHERE (SELECT listens FROM shop);
    RETURN NULL;
END $$;

-- Orders first, then their steps: in this order transactions lock them.
DROP TRIGGER orders_step ON orders;
CREATE TRIGGER orders_step BEFORE UPDATE OF status ON orders
    FOR EACH ROW EXECUTE FUNCTION record_order_step();
CREATE TRIGGER orders_made AFTER INSERT ON orders REFERENCING NEW TABLE AS made
    FOR EACH STATEMENT EXECUTE FUNCTION record_new_orders();

DROP TRIGGER order_steps_event ON order_steps;
DROP FUNCTION note_order_event();
CREATE TRIGGER order_steps_events AFTER INSERT ON order_steps REFERENCING NEW TABLE AS noted
    FOR EACH STATEMENT EXECUTE FUNCTION note_order_events();
