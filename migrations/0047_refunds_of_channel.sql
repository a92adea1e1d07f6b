-- The refunds under way of one channel are found without those of the others.
CREATE INDEX refunds_of_channel ON refunds (channel, created_at) WHERE status = 'requested';
