-- Flow control: which applications may ask, and the policies they ask under. Instances keep all of it in memory, and
-- follow one version, raised in the transaction of every change.

-- An application asks with a token, of which only the hash is kept. `seckill` is this service itself.
CREATE TABLE apps (
    name       text        PRIMARY KEY CONSTRAINT apps_name_form CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    token_hash bytea       CONSTRAINT apps_token_hash_length CHECK (length(token_hash) = 32)
                           CONSTRAINT apps_token_unique UNIQUE,
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT apps_token_given CHECK (token_hash IS NOT NULL OR name = 'seckill')
);
INSERT INTO apps (name, created_by) VALUES ('seckill', 'migration');

-- An algorithm with its parameters, and what happens to the excess. Counters are kept under `id` and `home`, which
-- never change, so that no change of a policy resets them.
CREATE TABLE policies (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text        NOT NULL CONSTRAINT policies_name_form CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    -- Policies of one home are in one slot of Redis, and can be asked all or nothing in one call. `spread` ones are
    -- alone, a slot for each key.
    home        text        NOT NULL,
    spread      boolean     NOT NULL DEFAULT false,
    -- What the caller's key stands for: user, address, interface, channel, content… For people, and for warnings.
    key         text        NOT NULL DEFAULT '' CONSTRAINT policies_key_length CHECK (length(key) <= 64),
    algorithm   text        NOT NULL CONSTRAINT policies_algorithm_known CHECK (algorithm IN (
                    'fixed-window', 'sliding-log', 'sliding-counter', 'token-bucket', 'leaky-bucket', 'concurrency')),
    -- The limit of a window, the capacity of a bucket, the places of a concurrency policy; -1 is no limit.
    max_permits bigint      NOT NULL CONSTRAINT policies_max_permits_range
                            CHECK (max_permits = -1 OR max_permits BETWEEN 1 AND 1000000000),
    -- Permits that a bucket gets back, or drains, each window_ms.
    rate        bigint      CONSTRAINT policies_rate_range CHECK (rate BETWEEN 1 AND 1000000),
    window_ms   bigint      CONSTRAINT policies_window_range CHECK (window_ms BETWEEN 100 AND 2678400000),
    lease_ms    bigint      CONSTRAINT policies_lease_range CHECK (lease_ms BETWEEN 100 AND 86400000),
    -- Where the threshold (the rate of a bucket, max_permits of others) moves by itself, and where it stands now.
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

-- The applications that may use a policy. An application has one policy of a name.
CREATE TABLE policy_apps (
    app       text   NOT NULL CONSTRAINT policy_apps_app_form CHECK (app ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    name      text   NOT NULL,
    policy_id bigint NOT NULL,
    PRIMARY KEY (app, name),
    FOREIGN KEY (policy_id, name) REFERENCES policies (id, name) ON DELETE CASCADE
);
CREATE INDEX policy_apps_by_policy ON policy_apps (policy_id);

-- Who may see an application's policies, and who may change them.
CREATE TABLE policy_grants (
    app        text        NOT NULL REFERENCES apps,
    account    text        NOT NULL CONSTRAINT policy_grants_account_form CHECK (account ~ '^[A-Za-z0-9_.@-]{1,64}$'),
    role       text        NOT NULL CONSTRAINT policy_grants_role_known CHECK (role IN ('viewer', 'owner')),
    granted_by text        NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (app, account)
);

CREATE TABLE policy_version (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT policy_version_single CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO policy_version (version) VALUES (1);
ALTER TABLE instances ADD COLUMN policy_version bigint NOT NULL DEFAULT 0;

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

-- What was asked of each policy, a row a minute: how thresholds are judged by history.
CREATE TABLE policy_minutes (
    policy_id  bigint      NOT NULL,
    minute     timestamptz NOT NULL,
    granted    bigint      NOT NULL CONSTRAINT policy_minutes_granted_range CHECK (granted >= 0),
    refused    bigint      NOT NULL CONSTRAINT policy_minutes_refused_range CHECK (refused >= 0),
    waited_ms  bigint      NOT NULL CONSTRAINT policy_minutes_waited_range CHECK (waited_ms >= 0),
    failed     bigint      NOT NULL CONSTRAINT policy_minutes_failed_range CHECK (failed >= 0),
    PRIMARY KEY (policy_id, minute)
);
CREATE INDEX policy_minutes_by_minute ON policy_minutes (minute);

-- What is wrong at the moment, and what was. One open alarm of a kind and subject.
CREATE TABLE alarms (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text        NOT NULL,
    subject     text        NOT NULL,
    details     jsonb       NOT NULL DEFAULT '{}',
    raised_at   timestamptz NOT NULL DEFAULT now(),
    cleared_at  timestamptz,
    -- The webhook hears of both ends; attempts are counted so that they can be spaced and given up.
    told_raised  boolean    NOT NULL DEFAULT false,
    told_cleared boolean    NOT NULL DEFAULT false,
    attempts     integer    NOT NULL DEFAULT 0 CONSTRAINT alarms_attempts_range CHECK (attempts >= 0),
    next_at      timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX alarms_open ON alarms (kind, subject) WHERE cleared_at IS NULL;
CREATE INDEX alarms_untold ON alarms (next_at) WHERE NOT told_raised OR (cleared_at IS NOT NULL AND NOT told_cleared);
