-- What the pages show: pictures of products, and the waves of stock that a sale plans.

-- Adding a column takes a moment, but it waits for those who use the table, and all others wait behind it. Better no change than
-- such a wait: `seckill migrate` can be repeated.
SET LOCAL lock_timeout = '1s';

-- A picture in the two sizes that pages use. It is named by the hash of these bytes, so a name never shows another picture, and
-- caches may keep it for ever. The bounds on bytes are far above what 1200 x 2400 pixels take.
CREATE TABLE pictures (
    hash         text     PRIMARY KEY CONSTRAINT pictures_hash_format CHECK (hash ~ '^[0-9a-f]{32}$'),
    small_width  integer  NOT NULL CONSTRAINT pictures_small_width_range CHECK (small_width BETWEEN 1 AND 480),
    small_height integer  NOT NULL CONSTRAINT pictures_small_height_range CHECK (small_height BETWEEN 1 AND 960),
    small        bytea    NOT NULL CONSTRAINT pictures_small_length CHECK (length(small) BETWEEN 1 AND 2097152),
    large_width  integer  NOT NULL CONSTRAINT pictures_large_width_range CHECK (large_width BETWEEN 1 AND 1200),
    large_height integer  NOT NULL CONSTRAINT pictures_large_height_range CHECK (large_height BETWEEN 1 AND 2400),
    large        bytea    NOT NULL CONSTRAINT pictures_large_length CHECK (length(large) BETWEEN 1 AND 8388608),
    created_at   timestamptz NOT NULL DEFAULT now(),
    -- Since when no product has shown it. It stays for a day, because pages that are open may still ask for it.
    unused_since timestamptz
);
-- JPEG does not get smaller by PostgreSQL's compression.
ALTER TABLE pictures ALTER COLUMN small SET STORAGE EXTERNAL, ALTER COLUMN large SET STORAGE EXTERNAL;

-- The reference keeps a picture that a product shows from being cleared.
ALTER TABLE products
    ADD COLUMN picture     text REFERENCES pictures,
    ADD COLUMN picture_alt text NOT NULL DEFAULT ''
               CONSTRAINT products_picture_alt_length CHECK (length(picture_alt) <= 300),
    ADD CONSTRAINT products_picture_alt_needs_picture CHECK (picture IS NOT NULL OR picture_alt = '');
-- Not checked for products that exist: nothing bounded their descriptions until now.
ALTER TABLE products ADD CONSTRAINT products_description_length CHECK (length(description) <= 5000) NOT VALID;
CREATE INDEX products_by_picture ON products (picture) WHERE picture IS NOT NULL;

-- Creating a sale touches its product without changing it. That is no change of the catalogue any more, because a change of a
-- product makes every instance load the product's sales again.
DROP TRIGGER products_change ON products;
CREATE TRIGGER products_change AFTER INSERT OR DELETE
    ON products FOR EACH ROW EXECUTE FUNCTION record_catalog_change('product');
CREATE TRIGGER products_changed AFTER UPDATE
    ON products FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION record_catalog_change('product');

-- Waves that were announced with their sale are told to buyers; stock that was added later is not. Of the waves that exist, only
-- one that is not released yet is known to have been planned.
ALTER TABLE sale_waves ADD COLUMN planned boolean NOT NULL DEFAULT false;
UPDATE sale_waves SET planned = true WHERE released_at IS NULL;

-- Both as programs read them, because several statements show them: the picture of each product that has one, and the announced
-- waves of each sale that has some. Seconds are whole unless the start was moved.
CREATE VIEW product_pictures AS
    SELECT p.id AS product_id,
           jsonb_build_object(
               'hash', hash,
               'alt', picture_alt,
               'small', jsonb_build_object('width', small_width, 'height', small_height),
               'large', jsonb_build_object('width', large_width, 'height', large_height)) AS picture
    FROM products p JOIN pictures ON hash = p.picture;
CREATE VIEW announced_waves AS
    SELECT sale_id,
           jsonb_agg(
               jsonb_build_object('after_s', greatest(extract(epoch FROM due_at - starts_at), 0)::bigint, 'units', units)
               ORDER BY due_at, w.id) AS waves
    FROM sale_waves w JOIN sales s ON s.id = sale_id WHERE planned GROUP BY sale_id;
