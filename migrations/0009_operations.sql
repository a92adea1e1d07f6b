-- Operations: the processes that run, alarms, receivers that fail, the fencing tokens of locks, and the service's
-- own secret.

-- Serving instances that are alive, with the versions of catalogue and policies that each has loaded. A change waits until
-- all have it.
CREATE TABLE instances (
    id              uuid PRIMARY KEY,
    catalog_version bigint      NOT NULL,
    seen_at         timestamptz NOT NULL DEFAULT now(),
    policy_version  bigint      NOT NULL DEFAULT 0
);

-- Processes that run workers, with the workers' names. Each reports itself every few seconds, and a dead one's row stays
-- for a day. For people: no program depends on it.
CREATE TABLE worker_processes (
    id      uuid        PRIMARY KEY,
    workers text[]      NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
);

-- Present and past trouble (docs/monitoring.md).
CREATE TABLE alarms (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text        NOT NULL,
    subject     text        NOT NULL,
    details     jsonb       NOT NULL DEFAULT '{}',
    raised_at   timestamptz NOT NULL DEFAULT now(),
    cleared_at  timestamptz,
    -- The webhook is told of both ends. Attempts are counted, to space them and to give up.
    told_raised  boolean    NOT NULL DEFAULT false,
    told_cleared boolean    NOT NULL DEFAULT false,
    attempts     integer    NOT NULL DEFAULT 0 CONSTRAINT alarms_attempts_range CHECK (attempts >= 0),
    next_at      timestamptz NOT NULL DEFAULT now(),
    -- When the trouble was last seen. The alarm is cleared only some time later, so that it does not flap.
    seen_at      timestamptz NOT NULL DEFAULT now(),
    -- Who has said that the alarm is known, when, and in which words.
    acknowledged_by text,
    acknowledged_at timestamptz,
    note            text    CONSTRAINT alarms_note_length CHECK (length(note) BETWEEN 1 AND 500),
    CONSTRAINT alarms_acknowledged_fits CHECK (num_nulls(acknowledged_by, acknowledged_at, note) IN (0, 3))
);
-- At most one open alarm of a kind and subject.
CREATE UNIQUE INDEX alarms_open ON alarms (kind, subject) WHERE cleared_at IS NULL;
-- For the webhook.
CREATE INDEX alarms_untold ON alarms (next_at) WHERE NOT told_raised OR (cleared_at IS NOT NULL AND NOT told_cleared);
-- For the console: open alarms first, then the newest.
CREATE INDEX alarms_newest ON alarms ((cleared_at IS NULL) DESC, id DESC);

-- Alarms that the webhook is not told of until a moment, also when they are cleared and raised again meanwhile.
CREATE TABLE alarm_mutes (
    kind     text        NOT NULL,
    subject  text        NOT NULL,
    until    timestamptz NOT NULL,
    muted_by text        NOT NULL,
    note     text        NOT NULL CONSTRAINT alarm_mutes_note_length CHECK (length(note) BETWEEN 1 AND 500),
    PRIMARY KEY (kind, subject)
);

-- Receivers that fail: since when, how many times in a row, when last tried, and until when nothing is sent. The next success
-- deletes the row. Senders and an alarm read it.
CREATE TABLE receivers_away (
    receiver     text        PRIMARY KEY CONSTRAINT receivers_away_receiver_length CHECK (length(receiver) BETWEEN 1 AND 100),
    failures     integer     NOT NULL DEFAULT 1 CONSTRAINT receivers_away_failures_positive CHECK (failures >= 1),
    since        timestamptz NOT NULL DEFAULT now(),
    tried_at     timestamptz NOT NULL DEFAULT now(),
    pauses_until timestamptz NOT NULL DEFAULT now(),
    error        text        NOT NULL
);

-- The newest fencing token of each lock. Two processes can hold a lock in Redis at once: one that slept past its lease, and
-- the next owner. A write under a lock writes here first, in its transaction, and an older token is refused.
CREATE TABLE fences (
    name  text PRIMARY KEY CONSTRAINT fences_name_length CHECK (length(name) BETWEEN 1 AND 200),
    token bigint NOT NULL CONSTRAINT fences_token_positive CHECK (token > 0)
);

-- The secret behind order ids; the service derives other keys from it, too. It is the same for all instances and never
-- changes, because a repeated request must find its order.
CREATE TABLE keyring (
    name   text  PRIMARY KEY,
    secret bytea NOT NULL CONSTRAINT keyring_secret_length CHECK (length(secret) = 32)
);
INSERT INTO keyring (name, secret)
VALUES ('order-id', uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
