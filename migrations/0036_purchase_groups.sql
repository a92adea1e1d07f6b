-- Winners of one call of reserve.lua are committed as one row, and settled as one (protocol, rules 3 and 7). A winner alone, and all that
-- is unusual, is committed as a purchase row of the outbox, as before: an order may have both. Whoever counts purchases counts orders.

CREATE TABLE purchase_groups (
    -- Made by the process that commits the group, before it tries: a statement that is repeated makes no second row.
    id         uuid PRIMARY KEY,
    -- Drawn together with the outbox's, so that purchases of both kinds have one order in lists.
    place      bigint      NOT NULL DEFAULT nextval('outbox_id_seq'),
    sale_id    bigint      NOT NULL,
    epoch      bigint      NOT NULL,
    shard      smallint    NOT NULL,
    members    integer     NOT NULL CONSTRAINT purchase_groups_members_range CHECK (members BETWEEN 1 AND 1000),
    units      integer     NOT NULL CONSTRAINT purchase_groups_units_range CHECK (units >= members),
    -- The members' figures stand at the same place of each array, in the order in which they won.
    order_ids  uuid[]      NOT NULL,
    user_ids   text[]      NOT NULL,
    quantities integer[]   NOT NULL,
    addresses  text[]      NOT NULL,
    -- Whether purchase rows have taken the place of this row: then it made no order.
    was_split  boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz,
    CONSTRAINT purchase_groups_arrays_fit CHECK (cardinality(order_ids) = members AND cardinality(user_ids) = members
        AND cardinality(quantities) = members AND cardinality(addresses) = members),
    CONSTRAINT purchase_groups_quantities_positive CHECK (0 < ALL (quantities)),
    CONSTRAINT purchase_groups_split_is_settled CHECK (NOT was_split OR settled_at IS NOT NULL)
);
-- Ids do not compress, and trying costs more than the rest of the row.
ALTER TABLE purchase_groups ALTER order_ids SET STORAGE EXTERNAL, ALTER user_ids SET STORAGE EXTERNAL,
    ALTER quantities SET STORAGE EXTERNAL, ALTER addresses SET STORAGE EXTERNAL;
CREATE INDEX purchase_groups_of_sale ON purchase_groups (sale_id, place);
CREATE INDEX purchase_groups_unsettled ON purchase_groups (sale_id, place) WHERE settled_at IS NULL;
-- Finds a buyer's purchases at once. Without a pending list: a commit would have to merge it now and then, 15 ms at a time, and each
-- read would walk over it. Bytes are compared as they are, so a query says COLLATE "C", too.
CREATE INDEX purchase_groups_buyers ON purchase_groups USING gin (user_ids COLLATE "C") WITH (fastupdate = off)
    WHERE settled_at IS NULL;

-- Purchases without an order, each once, from whichever record came first.
CREATE VIEW accepted_purchases AS
SELECT DISTINCT ON (r.sale_id, r.order_id) r.place, r.position, r.order_id, r.sale_id, r.user_id, r.quantity, r.created_at
FROM (SELECT id AS place, 0::bigint AS position, order_id, sale_id, user_id, quantity, created_at
      FROM outbox WHERE kind = 'order_placed' AND status <> 'processed'
      UNION ALL
      SELECT g.place, m.position, m.order_id, g.sale_id, m.user_id, m.quantity, g.created_at
      FROM purchase_groups g
      CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities)
                         WITH ORDINALITY AS m (order_id, user_id, quantity, position)
      WHERE g.settled_at IS NULL) AS r
WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = r.order_id)
ORDER BY r.sale_id, r.order_id, r.place;

-- All purchases that were made durable, each once, until they are cleared: for people, tests and the bench.
CREATE VIEW purchase_records AS
SELECT r.order_id, r.sale_id, r.user_id, r.quantity, min(r.created_at) AS created_at, bool_or(r.settled) AS settled
FROM (SELECT order_id, sale_id, user_id, quantity, created_at, status = 'processed' AS settled
      FROM outbox WHERE kind = 'order_placed'
      UNION ALL
      SELECT m.order_id, g.sale_id, m.user_id, m.quantity, g.created_at, g.settled_at IS NOT NULL
      FROM purchase_groups g
      CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities) AS m (order_id, user_id, quantity)
      WHERE NOT g.was_split) AS r
GROUP BY r.order_id, r.sale_id, r.user_id, r.quantity;

-- Whether purchases are committed as groups. A new database begins with them; an older one is switched by `seckill upgrade groups on`
-- when all its processes know them (docs/upgrades.md). A commit reads the row FOR SHARE, so none is under way when a change returns.
CREATE TABLE purchase_form (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT purchase_form_single CHECK (one),
    grouped boolean NOT NULL
);
INSERT INTO purchase_form (grouped) SELECT NOT EXISTS (SELECT FROM sales);

-- What a process says of itself. Older versions do not name the column.
ALTER TABLE instances ADD COLUMN knows_groups boolean NOT NULL DEFAULT false;
ALTER TABLE worker_processes ADD COLUMN knows_groups boolean NOT NULL DEFAULT false;

-- A version that does not know groups must not refill: it would put their units up for sale again. Versions that do, say so with the
-- setting seckill.groups in the transaction that raises an epoch.
CREATE FUNCTION refuse_blind_refill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('seckill.groups', true) IS DISTINCT FROM 'on'
       AND ((SELECT grouped FROM purchase_form)
            OR EXISTS (SELECT FROM purchase_groups WHERE sale_id = NEW.sale_id AND settled_at IS NULL)) THEN
        RAISE EXCEPTION 'this version does not know purchase groups and may not refill sale %', NEW.sale_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'sale_epochs_knows_groups',
                  HINT = 'Start a newer version, or run `seckill upgrade groups off` with it.';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER sale_epochs_known BEFORE UPDATE OF epoch ON sale_epochs FOR EACH ROW
    WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION refuse_blind_refill();
