-- People who look after flow control over the admin API. What an account may do is its role, and for those who are no
-- admins, what they were granted application by application (policy_grants, 0007).
CREATE TABLE accounts (
    name          text        PRIMARY KEY CONSTRAINT accounts_name_form CHECK (name ~ '^[A-Za-z0-9_.@-]{1,64}$'),
    -- admin: everything. manager: what is granted. viewer: sees what is granted, and changes nothing, whatever is granted.
    role          text        NOT NULL CONSTRAINT accounts_role_known CHECK (role IN ('admin', 'manager', 'viewer')),
    -- As a PHC string: with its salt and its cost, so that the cost can be raised for new ones.
    password_hash text        NOT NULL CONSTRAINT accounts_password_argon2id CHECK (password_hash LIKE '$argon2id$%'),
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- Who is signed in. The token is the browser's alone; the token against forgery (CSRF) is derived from it, and is kept
-- nowhere. Attempts to sign in are counted in Redis, by a limiter.
CREATE TABLE sessions (
    token_hash bytea       PRIMARY KEY CONSTRAINT sessions_token_hash_length CHECK (length(token_hash) = 32),
    account    text        NOT NULL REFERENCES accounts ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    -- Idle for too long is signed out, too.
    seen_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sessions_end_after_they_begin CHECK (expires_at > created_at)
);
CREATE INDEX sessions_by_account ON sessions (account, created_at);
CREATE INDEX sessions_by_end ON sessions (expires_at);
