-- What is sold: products, sales, the epoch a sale's Redis state was filled under, and who runs.

CREATE TABLE products (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL CONSTRAINT products_name_unique UNIQUE
                            CONSTRAINT products_name_length CHECK (length(name) BETWEEN 1 AND 200),
    description text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- stock is the truth about what is left. -1 in both columns means unlimited, and is never counted.
CREATE TABLE sales (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    product_id     bigint      NOT NULL REFERENCES products,
    price_cents    bigint      NOT NULL CONSTRAINT sales_price_range CHECK (price_cents BETWEEN 0 AND 100000000000),
    total_stock    bigint      NOT NULL,
    stock          bigint      NOT NULL,
    per_user       integer     NOT NULL CONSTRAINT sales_per_user_range CHECK (per_user BETWEEN 1 AND 10000),
    min_level      integer     NOT NULL CONSTRAINT sales_min_level_range CHECK (min_level >= 0),
    captcha        text        NOT NULL DEFAULT 'none'
                               CONSTRAINT sales_captcha_known CHECK (captcha IN ('none', 'image', 'slider')),
    shards         smallint    NOT NULL DEFAULT 1 CONSTRAINT sales_shards_range CHECK (shards BETWEEN 1 AND 64),
    starts_at      timestamptz NOT NULL,
    ends_at        timestamptz NOT NULL,
    pay_within_ms  bigint      NOT NULL
                               CONSTRAINT sales_pay_within_range CHECK (pay_within_ms BETWEEN 1000 AND 2592000000),
    status         text        NOT NULL DEFAULT 'open'
                               CONSTRAINT sales_status_known CHECK (status IN ('open', 'paused', 'closed')),
    -- Told by state.js while the sale is open; before that the waiting key is told, which buys nothing.
    purchase_key   text        NOT NULL,
    waiting_key    text        NOT NULL,
    -- The catalogue version that this row changed in: instances load what is newer than what they have.
    version        bigint      NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sales_window CHECK (ends_at > starts_at),
    CONSTRAINT sales_stock_bounds CHECK (
        (total_stock = -1 AND stock = -1) OR (stock BETWEEN 0 AND total_stock)),
    CONSTRAINT sales_keys_differ CHECK (purchase_key <> waiting_key)
-- Rewritten for each group of winners: room on the page keeps those updates in place.
) WITH (fillfactor = 50);
CREATE INDEX sales_by_version ON sales (version);

-- The epoch stands in a row of its own, because purchases read it FOR SHARE while fulfilment rewrites the sale.
-- run_id is the Redis server this epoch was filled on; NULL while a refill is under way.
CREATE TABLE sale_epochs (
    sale_id   bigint PRIMARY KEY REFERENCES sales,
    epoch     bigint NOT NULL DEFAULT 0 CONSTRAINT sale_epochs_epoch_range CHECK (epoch >= 0),
    run_id    text,
    filled_at timestamptz
) WITH (fillfactor = 50);

-- What each buyer holds of each sale: the per-user limit, held by the database.
CREATE TABLE sale_buyers (
    sale_id  bigint  NOT NULL REFERENCES sales,
    user_id  text    NOT NULL,
    units    integer NOT NULL,
    per_user integer NOT NULL,
    PRIMARY KEY (sale_id, user_id),
    CONSTRAINT sale_buyers_within_limit CHECK (units BETWEEN 0 AND per_user)
) WITH (fillfactor = 80);

-- One row: raised in the transaction of every change to a sale, so that an instance can say how much it has seen.
CREATE TABLE catalog_version (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT catalog_version_single CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO catalog_version (version) VALUES (0);

-- Serving instances that are alive, and the catalogue version each of them has loaded.
CREATE TABLE instances (
    id              uuid PRIMARY KEY,
    catalog_version bigint      NOT NULL,
    seen_at         timestamptz NOT NULL DEFAULT now()
);

-- The secret behind order ids: the same for all instances, and for ever, because a repeat must find its order.
CREATE TABLE keyring (
    name   text  PRIMARY KEY,
    secret bytea NOT NULL CONSTRAINT keyring_secret_length CHECK (length(secret) = 32)
);
INSERT INTO keyring (name, secret)
VALUES ('order-id', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

-- Who did what: people and repairs alike. Only ever appended to.
CREATE TABLE audit_log (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    subject text        NOT NULL,
    details jsonb       NOT NULL DEFAULT '{}'
);
