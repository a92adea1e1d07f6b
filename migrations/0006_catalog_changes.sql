-- What instances keep in memory of sales and products follows this list. It is written by triggers, so that whoever
-- changes a row, by whatever way, is heard; and in the order in which the changes commit, because each takes the
-- version's row lock first. Old entries are cleared after a day: who is further behind loads everything.

CREATE TABLE catalog_changes (
    version bigint PRIMARY KEY,
    kind    text        NOT NULL CONSTRAINT catalog_changes_kind_known CHECK (kind IN ('sale', 'product')),
    id      bigint      NOT NULL,
    removed boolean     NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX catalog_changes_by_age ON catalog_changes (at);

CREATE FUNCTION record_catalog_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    next bigint;
BEGIN
    UPDATE catalog_version SET version = version + 1 RETURNING version INTO next;
    INSERT INTO catalog_changes (version, kind, id, removed)
    VALUES (next, TG_ARGV[0], coalesce(NEW.id, OLD.id), TG_OP = 'DELETE');
    PERFORM pg_notify('seckill_catalog', '');
    RETURN NULL;
END $$;

-- Not on stock: the hot row's figures are nobody's memory.
CREATE TRIGGER sales_change AFTER INSERT OR DELETE OR UPDATE OF
    product_id, price_cents, per_user, min_level, captcha, starts_at, ends_at, pay_within_ms, status, purchase_key, waiting_key
    ON sales FOR EACH ROW EXECUTE FUNCTION record_catalog_change('sale');
CREATE TRIGGER products_change AFTER INSERT OR DELETE OR UPDATE
    ON products FOR EACH ROW EXECUTE FUNCTION record_catalog_change('product');

DROP INDEX sales_by_version;
ALTER TABLE sales DROP COLUMN version;
