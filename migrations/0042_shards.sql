-- The stock of a sale in several shards (protocol, rule 15; docs/shards.md). The column is as old as the table.

-- Every key of a sale, and the home of each buyer, depend on the number of shards.
CREATE FUNCTION refuse_other_shards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the shards of sale % never change', NEW.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'sales_shards_fixed';
END $$;
CREATE TRIGGER sales_shards_fixed BEFORE UPDATE OF shards ON sales FOR EACH ROW
    WHEN (NEW.shards <> OLD.shards) EXECUTE FUNCTION refuse_other_shards();

-- A version that does not know shards must not refill such a sale: it would put the whole stock under keys that nobody else uses. Versions
-- that do, say so with the setting seckill.shards in the transaction that raises an epoch.
CREATE FUNCTION refuse_shardless_refill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('seckill.shards', true) IS DISTINCT FROM 'on'
       AND (SELECT shards FROM sales WHERE id = NEW.sale_id) > 1 THEN
        RAISE EXCEPTION 'this version does not know shards and may not refill sale %', NEW.sale_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'sale_epochs_knows_shards', HINT = 'Start a newer version.';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER sale_epochs_shards_known BEFORE UPDATE OF epoch ON sale_epochs FOR EACH ROW
    WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION refuse_shardless_refill();

-- As before, and with the shard that holds the units. Two records of one purchase name the same.
CREATE OR REPLACE VIEW accepted_purchases AS
SELECT DISTINCT ON (r.sale_id, r.order_id) r.place, r.position, r.order_id, r.sale_id, r.user_id, r.quantity, r.created_at, r.shard
FROM (SELECT id AS place, 0::bigint AS position, order_id, sale_id, user_id, quantity, created_at, shard
      FROM outbox WHERE kind = 'order_placed' AND status <> 'processed'
      UNION ALL
      SELECT g.place, m.position, m.order_id, g.sale_id, m.user_id, m.quantity, g.created_at, g.shard
      FROM purchase_groups g
      CROSS JOIN LATERAL unnest(g.order_ids, g.user_ids, g.quantities)
                         WITH ORDINALITY AS m (order_id, user_id, quantity, position)
      WHERE g.settled_at IS NULL) AS r
WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = r.order_id)
ORDER BY r.sale_id, r.order_id, r.place;
