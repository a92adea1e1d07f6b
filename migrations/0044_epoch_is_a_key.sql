-- Commits of purchases lock the row of their sale's epoch FOR KEY SHARE, which only a change of a key waits for: so the epoch becomes part of
-- one. The server that a sale was filled on, and a refill that is asked for, are written meanwhile, however dense the commits are.
CREATE UNIQUE INDEX sale_epochs_epoch_is_key ON sale_epochs (sale_id, epoch);
