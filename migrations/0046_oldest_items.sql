-- For the age of the oldest item, the only statement that contains this expression. PostgreSQL also chose the index outflow_items_oldest, with its
-- plain comparison, to find the items of one key: when the statistics showed an empty backlog. Then it read the whole backlog.
CREATE INDEX outflow_items_first ON outflow_items (channel, created_at) WHERE status || '' IN ('pending', 'sending');
