-- The newest fencing token that anybody has written under, by the lock's name. A lock in Redis can be held by two at once:
-- by one who slept past his lease, and by the next. Whoever writes under a lock writes here first, in the same transaction,
-- and is refused when his token is older.

CREATE TABLE fences (
    name  text PRIMARY KEY CONSTRAINT fences_name_length CHECK (length(name) BETWEEN 1 AND 200),
    token bigint NOT NULL CONSTRAINT fences_token_positive CHECK (token > 0)
);
