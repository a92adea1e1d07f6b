-- Purchases between their 202 and their orders. Winners of one call of reserve.lua are committed as one row, and settled as
-- one (protocol, rules 3 and 7). A single winner is a group of one, whose id is the order's id. So is each member of a group
-- that is committed or settled one by one, and each repeat of a purchase that is not confirmed: whoever commits it, it is one row.
-- An order may be a member of a larger group, too, so the views below count each order once.

CREATE TABLE purchase_groups (
    -- The committing process makes it before its first try, so a repeated statement makes no second row. Of a group of one it is
    -- the order's id.
    id         uuid PRIMARY KEY,
    -- The order of lists.
    place      bigint      GENERATED ALWAYS AS IDENTITY,
    sale_id    bigint      NOT NULL,
    epoch      bigint      NOT NULL,
    shard      smallint    NOT NULL,
    members    integer     NOT NULL CONSTRAINT purchase_groups_members_range CHECK (members BETWEEN 1 AND 1000),
    units      integer     NOT NULL CONSTRAINT purchase_groups_units_range CHECK (units >= members),
    -- The figures of one member are at the same place of each array, in the order in which the members won.
    order_ids  uuid[]      NOT NULL,
    user_ids   text[]      NOT NULL,
    quantities integer[]   NOT NULL,
    -- Network addresses, as the limits see them. NULL in the group of a hold that the reconciler has finished.
    addresses  text[]      NOT NULL,
    -- Whether groups of one have replaced this row. Then it made no order.
    was_split  boolean     NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz,
    CONSTRAINT purchase_groups_one_is_its_order CHECK ((members = 1) = (id = order_ids[1])),
    CONSTRAINT purchase_groups_arrays_fit CHECK (cardinality(order_ids) = members AND cardinality(user_ids) = members
        AND cardinality(quantities) = members AND cardinality(addresses) = members),
    CONSTRAINT purchase_groups_quantities_positive CHECK (0 < ALL (quantities)),
    CONSTRAINT purchase_groups_split_is_settled CHECK (NOT was_split OR settled_at IS NOT NULL)
);
-- Ids do not compress, and trying costs more than the rest of the row.
ALTER TABLE purchase_groups ALTER order_ids SET STORAGE EXTERNAL, ALTER user_ids SET STORAGE EXTERNAL,
    ALTER quantities SET STORAGE EXTERNAL, ALTER addresses SET STORAGE EXTERNAL;
-- A rush writes so many groups that autovacuum analyzes them in its midst. ANALYZE samples 300 rows for each unit of the
-- largest target of a column, so every column has a small one; arrays that no query searches have none.
ALTER TABLE purchase_groups
    ALTER id SET STATISTICS 10, ALTER place SET STATISTICS 10, ALTER sale_id SET STATISTICS 10, ALTER epoch SET STATISTICS 10,
    ALTER shard SET STATISTICS 10, ALTER members SET STATISTICS 10, ALTER units SET STATISTICS 10,
    ALTER order_ids SET STATISTICS 0, ALTER user_ids SET STATISTICS 10, ALTER quantities SET STATISTICS 0,
    ALTER addresses SET STATISTICS 0, ALTER was_split SET STATISTICS 10, ALTER created_at SET STATISTICS 10,
    ALTER settled_at SET STATISTICS 10;
-- For the auditor.
CREATE INDEX purchase_groups_of_sale ON purchase_groups (sale_id, place);
-- For purchases without an order: of a sale, and of a buyer.
CREATE INDEX purchase_groups_unsettled ON purchase_groups (sale_id, place) WHERE settled_at IS NULL;
-- Without a pending list: commits would have to merge it now and then, and each read would scan it. Queries name the
-- collation, too: it compares bytes. Its condition is another expression than that of the index before: when the statistics show an
-- empty backlog, PostgreSQL would read the whole of that one to find a buyer.
CREATE INDEX purchase_groups_buyers ON purchase_groups USING gin (user_ids COLLATE "C") WITH (fastupdate = off)
    WHERE num_nulls(settled_at) = 1;

-- Purchases without an order, each once. All groups of a purchase name the same shard.
CREATE VIEW accepted_purchases AS
SELECT DISTINCT ON (g.sale_id, m.order_id) m.order_id, g.sale_id, m.user_id, m.quantity, g.created_at, g.shard
FROM purchase_groups g
CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities) AS m (order_id, user_id, quantity)
WHERE g.settled_at IS NULL AND NOT EXISTS (SELECT FROM orders o WHERE o.id = m.order_id)
ORDER BY g.sale_id, m.order_id, g.place;

-- All durable purchases, each once, until retention clears them. For people, tests and the benchmark.
CREATE VIEW purchase_records AS
SELECT m.order_id, g.sale_id, m.user_id, m.quantity, min(g.created_at) AS created_at, bool_or(g.settled_at IS NOT NULL) AS settled
FROM purchase_groups g
CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities) AS m (order_id, user_id, quantity)
WHERE NOT g.was_split
GROUP BY m.order_id, g.sale_id, m.user_id, m.quantity;
