-- Serves one statement alone, which writes this expression. The index outflow_items_oldest has a plain comparison instead. So it was chosen for
-- items of one key, too, by statistics of a moment at which nothing waited, and everything that waited was read.
CREATE INDEX outflow_items_first ON outflow_items (channel, created_at) WHERE status || '' IN ('pending', 'sending');
