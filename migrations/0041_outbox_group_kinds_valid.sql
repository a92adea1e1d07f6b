-- Reads the outbox once, and lets writers pass meanwhile.
ALTER TABLE outbox VALIDATE CONSTRAINT outbox_kind_known, VALIDATE CONSTRAINT outbox_due_at_fits,
    VALIDATE CONSTRAINT outbox_returns_fits, VALIDATE CONSTRAINT outbox_members_fit;
