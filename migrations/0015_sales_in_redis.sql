-- Whether Redis may keep anything of a sale. A refill sets it before it writes to Redis, and the removal of a sale that ended
-- long ago clears it. run_id cannot tell: it is NULL, too, while a refill is under way, and after one that failed.
ALTER TABLE sale_epochs ADD COLUMN in_redis boolean NOT NULL DEFAULT true;
