-- Flow control: the applications that may ask for permits, and the policies that decide (docs/limits.md). Every instance
-- keeps all of it in memory and follows one version, which every change raises.

-- An application asks with a token; only its hash is kept. `seckill` is this service itself, and has none.
CREATE TABLE apps (
    name       text        PRIMARY KEY CONSTRAINT apps_name_form CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    token_hash bytea       CONSTRAINT apps_token_hash_length CHECK (length(token_hash) = 32)
                           CONSTRAINT apps_token_unique UNIQUE,
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    token_created_at     timestamptz NOT NULL DEFAULT now(),
    -- While a token is being replaced, the old one is valid until a stated moment.
    old_token_hash       bytea CONSTRAINT apps_old_token_hash_length CHECK (length(old_token_hash) = 32),
    old_token_created_at timestamptz,
    old_token_ends_at    timestamptz,
    CONSTRAINT apps_token_given CHECK (token_hash IS NOT NULL OR name = 'seckill'),
    CONSTRAINT apps_old_token_complete CHECK (num_nulls(old_token_hash, old_token_created_at, old_token_ends_at) IN (0, 3)),
    CONSTRAINT apps_old_token_differs CHECK (old_token_hash <> token_hash)
);
INSERT INTO apps (name, created_by) VALUES ('seckill', 'migration');

-- An algorithm with its parameters, and the treatment of the excess. Counters in Redis are kept under `id` and `home`,
-- which never change, so a change of a policy resets no counter.
CREATE TABLE policies (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL CONSTRAINT policies_name_form CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    -- Policies of one home share a slot of Redis, so one call can ask them all or nothing. A policy with `spread` is alone,
    -- and each of its keys has a slot of its own.
    home        text        NOT NULL,
    spread      boolean     NOT NULL DEFAULT false,
    -- The meaning of the caller's key, such as user or channel. For people and warnings; with `address`, all spellings of a
    -- network address are one key.
    key         text        NOT NULL DEFAULT '' CONSTRAINT policies_key_length CHECK (length(key) <= 64),
    algorithm   text        NOT NULL CONSTRAINT policies_algorithm_known CHECK (algorithm IN (
                    'fixed-window', 'sliding-log', 'sliding-counter', 'token-bucket', 'leaky-bucket', 'concurrency')),
    -- The limit of a window, the capacity of a bucket, or the places of a concurrency policy. -1: no limit.
    max_permits bigint      NOT NULL CONSTRAINT policies_max_permits_range
                            CHECK (max_permits = -1 OR max_permits BETWEEN 1 AND 1000000000),
    -- Permits that a bucket regains or drains in window_ms.
    rate        bigint      CONSTRAINT policies_rate_range CHECK (rate BETWEEN 1 AND 1000000),
    window_ms   bigint      CONSTRAINT policies_window_range CHECK (window_ms BETWEEN 100 AND 2678400000),
    lease_ms    bigint      CONSTRAINT policies_lease_range CHECK (lease_ms BETWEEN 100 AND 86400000),
    -- The bounds of a threshold that moves by itself, and its present value. The threshold is the rate of a bucket, and
    -- max_permits of the others.
    floor       bigint,
    ceiling     bigint,
    target_ms   bigint      CONSTRAINT policies_target_range CHECK (target_ms BETWEEN 1 AND 3600000),
    adapted     bigint,
    adapted_at  timestamptz,
    excess      text        NOT NULL DEFAULT 'reject'
                            CONSTRAINT policies_excess_known CHECK (excess IN ('reject', 'queue', 'degrade', 'shadow')),
    queue_ms    bigint      CONSTRAINT policies_queue_range CHECK (queue_ms BETWEEN 1 AND 60000),
    answer      jsonb,
    when_down   text        NOT NULL DEFAULT 'closed'
                            CONSTRAINT policies_when_down_known CHECK (when_down IN ('closed', 'open', 'local')),
    breaker     jsonb,
    version     bigint      NOT NULL DEFAULT 1,
    created_by  text        NOT NULL,
    updated_by  text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    -- The threshold at which there was trouble last. Near it, every worker takes only small steps up.
    trouble_at  bigint,
    -- What policy_apps refers to.
    CONSTRAINT policies_id_name UNIQUE (id, name),
    CONSTRAINT policies_parameters CHECK (CASE algorithm
        WHEN 'token-bucket' THEN rate IS NOT NULL AND window_ms IS NOT NULL AND lease_ms IS NULL
        WHEN 'leaky-bucket' THEN rate IS NOT NULL AND window_ms IS NOT NULL AND lease_ms IS NULL
        WHEN 'concurrency' THEN lease_ms IS NOT NULL AND rate IS NULL AND window_ms IS NULL
        ELSE window_ms IS NOT NULL AND rate IS NULL AND lease_ms IS NULL END),
    CONSTRAINT policies_dynamic CHECK (
        (floor IS NULL AND ceiling IS NULL AND adapted IS NULL)
        OR (floor >= 1 AND ceiling >= floor AND adapted BETWEEN floor AND ceiling)),
    CONSTRAINT policies_excess_parameters CHECK (
        (excess = 'queue') = (queue_ms IS NOT NULL) AND (excess = 'degrade') = (answer IS NOT NULL))
);

-- The applications of each policy. The name is repeated here so that the primary key allows one policy of a name for an
-- application.
CREATE TABLE policy_apps (
    app       text   NOT NULL CONSTRAINT policy_apps_app_form CHECK (app ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    name      text   NOT NULL,
    policy_id bigint NOT NULL,
    PRIMARY KEY (app, name),
    FOREIGN KEY (policy_id, name) REFERENCES policies (id, name) ON DELETE CASCADE
);
-- For the reference, and for a policy's list of applications.
CREATE INDEX policy_apps_by_policy ON policy_apps (policy_id);

-- The accounts that may see an application's policies, or change them.
CREATE TABLE policy_grants (
    app        text        NOT NULL REFERENCES apps,
    account    text        NOT NULL CONSTRAINT policy_grants_account_form CHECK (account ~ '^[A-Za-z0-9_.@-]{1,64}$'),
    role       text        NOT NULL CONSTRAINT policy_grants_role_known CHECK (role IN ('viewer', 'owner')),
    granted_by text        NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (app, account)
);

-- One row. Instances start below it, so each loads the policies.
CREATE TABLE policy_version (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT policy_version_single CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO policy_version (version) VALUES (1);

CREATE FUNCTION record_policy_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE policy_version SET version = version + 1;
    PERFORM pg_notify('seckill_policies', '');
    RETURN NULL;
END $$;
CREATE TRIGGER policies_change AFTER INSERT OR UPDATE OR DELETE ON policies
    FOR EACH STATEMENT EXECUTE FUNCTION record_policy_change();
CREATE TRIGGER policy_apps_change AFTER INSERT OR UPDATE OR DELETE ON policy_apps
    FOR EACH STATEMENT EXECUTE FUNCTION record_policy_change();
CREATE TRIGGER apps_change AFTER INSERT OR UPDATE OR DELETE ON apps
    FOR EACH STATEMENT EXECUTE FUNCTION record_policy_change();

-- The calls of each policy, a row a minute: history to judge a threshold by.
CREATE TABLE policy_minutes (
    policy_id  bigint      NOT NULL,
    minute     timestamptz NOT NULL,
    granted    bigint      NOT NULL CONSTRAINT policy_minutes_granted_range CHECK (granted >= 0),
    refused    bigint      NOT NULL CONSTRAINT policy_minutes_refused_range CHECK (refused >= 0),
    waited_ms  bigint      NOT NULL CONSTRAINT policy_minutes_waited_range CHECK (waited_ms >= 0),
    failed     bigint      NOT NULL CONSTRAINT policy_minutes_failed_range CHECK (failed >= 0),
    PRIMARY KEY (policy_id, minute)
);
-- For retention.
CREATE INDEX policy_minutes_by_minute ON policy_minutes (minute);
