-- Accounts: the people who use the admin API and the console, their sessions, and the audit log (docs/security.md).

-- An account may do what its role allows. For roles other than admin, policy_grants adds rights by application.
CREATE TABLE accounts (
    name          text        PRIMARY KEY CONSTRAINT accounts_name_form CHECK (name ~ '^[A-Za-z0-9_.@-]{1,64}$'),
    -- admin: everything. manager: what is granted. viewer: sees what is granted, and changes nothing, whatever the grant.
    role          text        NOT NULL CONSTRAINT accounts_role_known CHECK (role IN ('admin', 'manager', 'viewer')),
    -- A PHC string, with salt and cost, so that the cost can be raised for new passwords.
    password_hash text        NOT NULL CONSTRAINT accounts_password_argon2id CHECK (password_hash LIKE '$argon2id$%'),
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    disabled_at   timestamptz
);

-- Only the browser has the token. The CSRF token is derived from it and not stored. Redis counts attempts to sign in.
CREATE TABLE sessions (
    token_hash bytea       PRIMARY KEY CONSTRAINT sessions_token_hash_length CHECK (length(token_hash) = 32),
    account    text        NOT NULL REFERENCES accounts ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    -- An idle session ends, too.
    seen_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sessions_end_after_they_begin CHECK (expires_at > created_at)
);
-- For the limit on sessions of an account, which ends the oldest.
CREATE INDEX sessions_by_account ON sessions (account, created_at);
-- For the clearing of ended sessions.
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- A new password, or disabling the account, ends its sessions in the same transaction, also with psql. No instance keeps
-- sessions in memory, so each refuses the next request.
CREATE FUNCTION end_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sessions WHERE account = NEW.name;
    RETURN NULL;
END $$;
CREATE TRIGGER accounts_end_sessions AFTER UPDATE OF password_hash, disabled_at ON accounts
    FOR EACH ROW WHEN (NEW.password_hash <> OLD.password_hash OR NEW.disabled_at IS NOT NULL)
    EXECUTE FUNCTION end_sessions();

-- Addresses that accounts have signed in from. Attempts from them are not limited together with attempts
-- from unknown addresses (docs/security.md).
CREATE TABLE sign_in_addresses (
    account text        NOT NULL REFERENCES accounts ON DELETE CASCADE,
    address text        NOT NULL CONSTRAINT sign_in_addresses_length CHECK (length(address) BETWEEN 1 AND 64),
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account, address)
);

-- Who did what: people and automatic repairs. Rows are only inserted.
CREATE TABLE audit_log (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    actor   text        NOT NULL,
    action  text        NOT NULL,
    subject text        NOT NULL,
    details jsonb       NOT NULL DEFAULT '{}'
);
-- For the console's filters. Each ends with the id, the order of the list, so the newest lines of one actor are read alone.
CREATE INDEX audit_log_by_actor ON audit_log (actor, id);
CREATE INDEX audit_log_by_action ON audit_log (action, id);
-- The beginning is enough to find a line. A policy's subject lists up to a hundred applications, more than an entry of an
-- index can hold: the change itself would fail.
CREATE INDEX audit_log_by_subject ON audit_log (left(subject, 100), id);
CREATE INDEX audit_log_by_time ON audit_log (at);

-- Bounds the lines about attempts to sign in: how many each subject had in its last minute. A subject is an account, or all
-- names without an account together.
CREATE TABLE audit_counts (
    subject   text        PRIMARY KEY,
    minute    timestamptz NOT NULL,
    attempts  bigint      NOT NULL CONSTRAINT audit_counts_attempts_range CHECK (attempts >= 1),
    -- Attempts of earlier minutes without a line. The next line states their number.
    unwritten bigint      NOT NULL DEFAULT 0 CONSTRAINT audit_counts_unwritten_range CHECK (unwritten >= 0)
);
