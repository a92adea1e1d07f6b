-- Supervision looks at a few sales in turn, and at those that wait for a refill. Neither reads the epochs of sales that have left Redis,
-- nor of those that are as they should be.
CREATE INDEX sale_epochs_in_redis ON sale_epochs (sale_id) WHERE in_redis;
CREATE INDEX sale_epochs_to_fill ON sale_epochs (sale_id) WHERE in_redis AND run_id IS NULL;
