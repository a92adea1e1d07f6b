-- Alarms that do not flap, receivers that are away, and the one state of a threshold that moves.

-- When the trouble of an open alarm was seen last. It is cleared when that is long enough ago.
ALTER TABLE alarms ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now();

-- The threshold at which there was trouble last. Near it, steps up are small, whichever worker takes them.
ALTER TABLE policies ADD COLUMN trouble_at bigint;

-- Receivers that could not be connected to: since when, and when it was tried last.
CREATE TABLE receivers_away (
    receiver text        PRIMARY KEY CONSTRAINT receivers_away_receiver_length CHECK (length(receiver) BETWEEN 1 AND 100),
    since    timestamptz NOT NULL DEFAULT now(),
    tried_at timestamptz NOT NULL DEFAULT now(),
    error    text        NOT NULL
);
