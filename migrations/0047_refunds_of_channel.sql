-- Finds the refunds in flight of one channel without reading those of others.
CREATE INDEX refunds_of_channel ON refunds (channel, created_at) WHERE status = 'requested';
