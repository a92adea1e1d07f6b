-- An account can be disabled. Whatever takes its password or the account away ends its sessions in the same transaction,
-- also a change made with psql: the next request of such a session is refused at every instance, because none is kept in memory.
ALTER TABLE accounts ADD COLUMN disabled_at timestamptz;
CREATE FUNCTION end_sessions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sessions WHERE account = NEW.name;
    RETURN NULL;
END $$;
CREATE TRIGGER accounts_end_sessions AFTER UPDATE OF password_hash, disabled_at ON accounts
    FOR EACH ROW WHEN (NEW.password_hash <> OLD.password_hash OR NEW.disabled_at IS NOT NULL)
    EXECUTE FUNCTION end_sessions();

-- Where accounts have signed in from. An attempt from such an address is no stranger's: docs/accounts.md says what that means.
CREATE TABLE sign_in_addresses (
    account text        NOT NULL REFERENCES accounts ON DELETE CASCADE,
    address text        NOT NULL CONSTRAINT sign_in_addresses_length CHECK (length(address) BETWEEN 1 AND 64),
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account, address)
);

-- How many lines of the audit log each of these subjects has had in its last minute. A row for each account that was refused or
-- signed in, and one for all names that no account has.
CREATE TABLE audit_counts (
    subject   text        PRIMARY KEY,
    minute    timestamptz NOT NULL,
    attempts  bigint      NOT NULL CONSTRAINT audit_counts_attempts_range CHECK (attempts >= 1),
    -- Lines of earlier minutes that were not written, until a line says so.
    unwritten bigint      NOT NULL DEFAULT 0 CONSTRAINT audit_counts_unwritten_range CHECK (unwritten >= 0)
);

-- While an application's token is replaced, the old one is valid until a stated moment.
ALTER TABLE apps
    ADD COLUMN token_created_at     timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN old_token_hash       bytea CONSTRAINT apps_old_token_hash_length CHECK (length(old_token_hash) = 32),
    ADD COLUMN old_token_created_at timestamptz,
    ADD COLUMN old_token_ends_at    timestamptz,
    ADD CONSTRAINT apps_old_token_complete CHECK (num_nulls(old_token_hash, old_token_created_at, old_token_ends_at) IN (0, 3)),
    ADD CONSTRAINT apps_old_token_differs CHECK (old_token_hash <> token_hash);
UPDATE apps SET token_created_at = created_at;
