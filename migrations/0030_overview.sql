-- What the console looks up at once.

-- The sales that are not over. Their ends do not change while they sell, so updates of the stock stay on their page.
CREATE INDEX sales_by_end ON sales (ends_at);

-- Processes that run workers, each with the names of its workers, as it reports itself every few seconds. Nothing depends on it: it
-- is for people, who want to see that somebody works. A row whose process has died stays for a day.
CREATE TABLE worker_processes (
    id      uuid        PRIMARY KEY,
    workers text[]      NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
);
