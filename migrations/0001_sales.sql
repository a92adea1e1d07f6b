-- Sales: products and their pictures, the terms of each sale, its waves of stock, and its epoch in Redis.
-- Every instance keeps a copy of sales and products in memory, the catalogue. A list of changes tells it what to load again.

-- A picture in the two sizes that pages use. Its name is the hash of its bytes, so a name never shows another picture, and
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
    -- Since when no product shows it. It stays for a day, because open pages may still ask for it.
    unused_since timestamptz
);
-- PostgreSQL's compression does not make a JPEG smaller.
ALTER TABLE pictures ALTER COLUMN small SET STORAGE EXTERNAL, ALTER COLUMN large SET STORAGE EXTERNAL;

CREATE TABLE products (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL CONSTRAINT products_name_unique UNIQUE
                            CONSTRAINT products_name_length CHECK (length(name) BETWEEN 1 AND 200),
    description text        NOT NULL DEFAULT ''
                            CONSTRAINT products_description_length CHECK (length(description) <= 5000),
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- The reference protects a picture in use from being cleared.
    picture     text        REFERENCES pictures,
    picture_alt text        NOT NULL DEFAULT ''
                            CONSTRAINT products_picture_alt_length CHECK (length(picture_alt) <= 300),
    CONSTRAINT products_picture_alt_needs_picture CHECK (picture IS NOT NULL OR picture_alt = '')
);
-- For the clearing of pictures, and for the reference when a picture is deleted.
CREATE INDEX products_by_picture ON products (picture) WHERE picture IS NOT NULL;

-- The picture of each product that has one, as programs read it.
CREATE VIEW product_pictures AS
    SELECT p.id AS product_id,
           jsonb_build_object(
               'hash', hash,
               'alt', picture_alt,
               'small', jsonb_build_object('width', small_width, 'height', small_height),
               'large', jsonb_build_object('width', large_width, 'height', large_height)) AS picture
    FROM products p JOIN pictures ON hash = p.picture;

-- `stock` is the truth about the units left. -1 in both columns of stock means unlimited: such a sale is not counted.
CREATE TABLE sales (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    product_id     bigint      NOT NULL REFERENCES products,
    price_cents    bigint      NOT NULL CONSTRAINT sales_price_range CHECK (price_cents BETWEEN 0 AND 100000000000),
    -- ISO 4217. An amount of minor units means nothing without it.
    currency       text        NOT NULL CONSTRAINT sales_currency_known CHECK (currency IN (
        'AED', 'AFN', 'ALL', 'AMD', 'AOA', 'ARS', 'AUD', 'AWG', 'AZN', 'BAM', 'BBD', 'BDT', 'BGN', 'BHD', 'BIF',
        'BMD', 'BND', 'BOB', 'BOV', 'BRL', 'BSD', 'BTN', 'BWP', 'BYN', 'BZD', 'CAD', 'CDF', 'CHE', 'CHF', 'CHW',
        'CLF', 'CLP', 'CNY', 'COP', 'COU', 'CRC', 'CUC', 'CUP', 'CVE', 'CZK', 'DJF', 'DKK', 'DOP', 'DZD', 'EGP',
        'ERN', 'ETB', 'EUR', 'FJD', 'FKP', 'GBP', 'GEL', 'GHS', 'GIP', 'GMD', 'GNF', 'GTQ', 'GYD', 'HKD', 'HNL',
        'HRK', 'HTG', 'HUF', 'IDR', 'ILS', 'INR', 'IQD', 'IRR', 'ISK', 'JMD', 'JOD', 'JPY', 'KES', 'KGS', 'KHR',
        'KMF', 'KPW', 'KRW', 'KWD', 'KYD', 'KZT', 'LAK', 'LBP', 'LKR', 'LRD', 'LSL', 'LYD', 'MAD', 'MDL', 'MGA',
        'MKD', 'MMK', 'MNT', 'MOP', 'MRU', 'MUR', 'MVR', 'MWK', 'MXN', 'MXV', 'MYR', 'MZN', 'NAD', 'NGN', 'NIO',
        'NOK', 'NPR', 'NZD', 'OMR', 'PAB', 'PEN', 'PGK', 'PHP', 'PKR', 'PLN', 'PYG', 'QAR', 'RON', 'RSD', 'RUB',
        'RWF', 'SAR', 'SBD', 'SCR', 'SDG', 'SEK', 'SGD', 'SHP', 'SLE', 'SLL', 'SOS', 'SRD', 'SSP', 'STN', 'SVC',
        'SYP', 'SZL', 'THB', 'TJS', 'TMT', 'TND', 'TOP', 'TRY', 'TTD', 'TWD', 'TZS', 'UAH', 'UGX', 'USD', 'USN',
        'UYI', 'UYU', 'UYW', 'UZS', 'VED', 'VES', 'VND', 'VUV', 'WST', 'XAD', 'XAF', 'XCD', 'XCG', 'XOF', 'XPF',
        'YER', 'ZAR', 'ZMW', 'ZWG', 'ZWL')),
    total_stock    bigint      NOT NULL,
    stock          bigint      NOT NULL,
    per_user       integer     NOT NULL CONSTRAINT sales_per_user_range CHECK (per_user BETWEEN 1 AND 10000),
    min_level      integer     NOT NULL CONSTRAINT sales_min_level_range CHECK (min_level >= 0),
    -- `work` is a proof of work: for people who cannot see, and for shops without pictures.
    captcha        text        NOT NULL DEFAULT 'none'
                               CONSTRAINT sales_captcha_known CHECK (captcha IN ('none', 'image', 'slider', 'work')),
    shards         smallint    NOT NULL DEFAULT 1 CONSTRAINT sales_shards_range CHECK (shards BETWEEN 1 AND 64),
    starts_at      timestamptz NOT NULL,
    ends_at        timestamptz NOT NULL,
    pay_within_ms  bigint      NOT NULL
                               CONSTRAINT sales_pay_within_range CHECK (pay_within_ms BETWEEN 1000 AND 2592000000),
    status         text        NOT NULL DEFAULT 'open'
                               CONSTRAINT sales_status_known CHECK (status IN ('open', 'paused', 'closed')),
    -- state.js tells the purchase key while the sale is open. Before, it tells the waiting key, which buys nothing.
    purchase_key   text        NOT NULL,
    waiting_key    text        NOT NULL,
    -- Rises with each change of what a buyer agrees to, such as the price (protocol, rule 19).
    terms_version  integer     NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT now(),
    -- Whether the units of a refunded order are for sale again.
    refund_returns_stock boolean NOT NULL DEFAULT true,
    -- Whether buyers see how far the sale is sold.
    show_stock     boolean     NOT NULL DEFAULT false,
    -- When retention released the sale's messages for clearing, and later its orders' steps. The auditor does not expect
    -- them from then on.
    cleared_at       timestamptz,
    steps_cleared_at timestamptz,
    CONSTRAINT sales_window CHECK (ends_at > starts_at),
    CONSTRAINT sales_stock_bounds CHECK (
        (total_stock = -1 AND stock = -1) OR (stock BETWEEN 0 AND total_stock AND total_stock <= 1000000000000)),
    CONSTRAINT sales_keys_differ CHECK (purchase_key <> waiting_key)
-- Every group of winners rewrites the row. Room on the page, and no index on the stock, keep these updates in place.
) WITH (fillfactor = 50);
-- For the console: the sales that are not over.
CREATE INDEX sales_by_end ON sales (ends_at);
-- For the work of each second: the sales that sell, begin soon, or have just ended.
CREATE INDEX sales_by_window ON sales USING gist (tstzrange(starts_at, ends_at));
-- For retention, in its two stages.
CREATE INDEX sales_to_clear ON sales (ends_at) WHERE cleared_at IS NULL;
CREATE INDEX sales_steps_to_clear ON sales (cleared_at) WHERE cleared_at IS NOT NULL AND steps_cleared_at IS NULL;

CREATE FUNCTION refuse_other_value() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% %: % never changes', TG_TABLE_NAME, NEW.id, TG_ARGV[0]
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
-- Every key of a sale in Redis, and the home of each buyer, depend on the number of shards.
CREATE TRIGGER sales_shards_fixed BEFORE UPDATE OF shards ON sales FOR EACH ROW
    WHEN (NEW.shards <> OLD.shards) EXECUTE FUNCTION refuse_other_value('the number of shards');
-- What was bought stays as it was bought: purchases without an order take product, price and currency from the sale. The program
-- checks more (protocol, rule 19).
CREATE FUNCTION refuse_other_terms_of_bought() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM orders WHERE sale_id = NEW.id) OR EXISTS (SELECT FROM purchase_groups WHERE sale_id = NEW.id) THEN
        RAISE EXCEPTION 'sale %: product, price and currency never change after a purchase', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER sales_terms_fixed BEFORE UPDATE OF product_id, price_cents, currency ON sales FOR EACH ROW
    WHEN ((NEW.product_id, NEW.price_cents, NEW.currency) IS DISTINCT FROM (OLD.product_id, OLD.price_cents, OLD.currency))
    EXECUTE FUNCTION refuse_other_terms_of_bought();

-- Stock for later: waves that were announced with the sale, and stock that was added afterwards. Each row is released
-- once here, and applied once an epoch in Redis (protocol, rule 14).
CREATE TABLE sale_waves (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    sale_id     bigint      NOT NULL REFERENCES sales,
    units       integer     NOT NULL CONSTRAINT sale_waves_units_positive CHECK (units > 0),
    due_at      timestamptz NOT NULL,
    released_at timestamptz,
    -- Whether it was announced with its sale: only then are buyers told.
    planned     boolean     NOT NULL DEFAULT false,
    -- Of the request that added it. A repeat of the request adds nothing.
    idempotency_key text    CONSTRAINT sale_waves_key_length CHECK (length(idempotency_key) BETWEEN 1 AND 200),
    -- Its index is also for all readers of one sale, and for the reference when a sale is deleted.
    CONSTRAINT sale_waves_once UNIQUE (sale_id, idempotency_key)
);
-- For the releaser of waves.
CREATE INDEX sale_waves_to_release ON sale_waves (due_at) WHERE released_at IS NULL;

-- Forms of sales that are not published: the fields of the console's form, as they were typed. No sale, so buyers see nothing
-- of it. The program keeps 200 at most.
CREATE TABLE sale_drafts (
    id         uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    product    text        NOT NULL CONSTRAINT sale_drafts_product_length CHECK (length(product) <= 200),
    form       jsonb       NOT NULL CONSTRAINT sale_drafts_form_bounds
                           CHECK (jsonb_typeof(form) = 'array' AND octet_length(form::text) <= 262144),
    updated_by text        NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- The announced waves of each sale, as programs read them. Seconds are whole unless the start was moved.
CREATE VIEW announced_waves AS
    SELECT sale_id,
           jsonb_agg(
               jsonb_build_object('after_s', greatest(extract(epoch FROM due_at - starts_at), 0)::bigint, 'units', units)
               ORDER BY due_at, w.id) AS waves
    FROM sale_waves w JOIN sales s ON s.id = sale_id WHERE planned GROUP BY sale_id;

-- Who may not buy in a sale: buyers, and network addresses as the limits see them. Instances keep them with the sale.
CREATE TABLE sale_blocks (
    sale_id    bigint      NOT NULL REFERENCES sales ON DELETE CASCADE,
    kind       text        NOT NULL CONSTRAINT sale_blocks_kind_known CHECK (kind IN ('buyer', 'address')),
    name       text        NOT NULL CONSTRAINT sale_blocks_name_length CHECK (length(name) BETWEEN 1 AND 128),
    note       text        NOT NULL CONSTRAINT sale_blocks_note_length CHECK (length(note) BETWEEN 1 AND 500),
    blocked_by text        NOT NULL,
    blocked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sale_id, kind, name)
);
-- For the erasure of a buyer.
CREATE INDEX sale_blocks_by_name ON sale_blocks (name);

-- The epoch has a row of its own, because commits of purchases lock it FOR KEY SHARE while fulfilment rewrites the sale.
CREATE TABLE sale_epochs (
    sale_id   bigint PRIMARY KEY REFERENCES sales,
    epoch     bigint NOT NULL DEFAULT 0 CONSTRAINT sale_epochs_epoch_range CHECK (epoch >= 0),
    -- The Redis server that holds this epoch. NULL while a refill runs or is due.
    run_id    text,
    -- When that server was filled. For people and tests.
    filled_at timestamptz,
    -- Whether Redis may hold keys of the sale. A refill sets it before it writes to Redis; the removal of an old sale
    -- clears it. run_id cannot tell this, because it is also NULL during a refill and after a failed one.
    in_redis  boolean NOT NULL DEFAULT true
) WITH (fillfactor = 50);
-- Makes the epoch part of a key: FOR KEY SHARE then blocks a change of the epoch, and no other update of the row.
CREATE UNIQUE INDEX sale_epochs_epoch_is_key ON sale_epochs (sale_id, epoch);
-- For supervision: a few of the sales in Redis in turn, and the sales that need a refill.
CREATE INDEX sale_epochs_in_redis ON sale_epochs (sale_id) WHERE in_redis;
CREATE INDEX sale_epochs_to_fill ON sale_epochs (sale_id) WHERE in_redis AND run_id IS NULL;

-- One row. Every change of the catalogue raises the version, so an instance can say which changes it has loaded.
CREATE TABLE catalog_version (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT catalog_version_single CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO catalog_version (version) VALUES (0);

-- The changes that instances load. Triggers write them, so a change with psql is seen, too. Each takes the row lock of the
-- version first, so versions rise in the order of the commits. Rows are cleared after a day; an instance that is further
-- behind loads the whole catalogue.
CREATE TABLE catalog_changes (
    version bigint PRIMARY KEY,
    kind    text        NOT NULL CONSTRAINT catalog_changes_kind_known CHECK (kind IN ('sale', 'product')),
    id      bigint      NOT NULL,
    removed boolean     NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
-- For the clearing.
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

CREATE FUNCTION record_block_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    next bigint;
BEGIN
    UPDATE catalog_version SET version = version + 1 RETURNING version INTO next;
    INSERT INTO catalog_changes (version, kind, id, removed) VALUES (next, 'sale', coalesce(NEW.sale_id, OLD.sale_id), false);
    PERFORM pg_notify('seckill_catalog', '');
    RETURN NULL;
END $$;
CREATE TRIGGER sale_blocks_change AFTER INSERT OR DELETE ON sale_blocks
    FOR EACH ROW EXECUTE FUNCTION record_block_change();

-- Not on the stock: no instance keeps it. Waves to come change with their sale (protocol, rule 19).
CREATE TRIGGER sales_change AFTER INSERT OR DELETE OR UPDATE OF
    product_id, price_cents, currency, total_stock, show_stock, per_user, min_level, captcha, starts_at, ends_at, pay_within_ms, status,
    purchase_key, waiting_key
    ON sales FOR EACH ROW EXECUTE FUNCTION record_catalog_change('sale');
CREATE TRIGGER products_change AFTER INSERT OR DELETE
    ON products FOR EACH ROW EXECUTE FUNCTION record_catalog_change('product');
-- Creating a sale updates its product without a change. Without this condition every instance would load all sales of the
-- product again.
CREATE TRIGGER products_changed AFTER UPDATE
    ON products FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION record_catalog_change('product');
