-- Serves one statement alone, which writes this expression. As a plain comparison it was chosen for items of one key, too, by statistics of a
-- moment at which nothing waited; it then read all that waits.
DROP INDEX outflow_items_oldest;
CREATE INDEX outflow_items_oldest ON outflow_items (channel, created_at) WHERE status || '' IN ('pending', 'sending');
-- By channel: the refunds of one are found without those of the others.
DROP INDEX refunds_under_way;
CREATE INDEX refunds_under_way ON refunds (channel, created_at) WHERE status = 'requested';
