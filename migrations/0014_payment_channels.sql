-- Payment channels are entries of the settings. Each has a queue, an outflow for its refunds, and questions of its own, so that
-- a channel that is dead or resting delays no other.

-- The payment channel whose refunds leave by an outflow; null for every other outflow. A worker without this channel in its
-- settings cannot sign the requests, and leaves the outflow alone.
ALTER TABLE outflow_channels ADD COLUMN payment_channel text;
UPDATE outflow_channels c SET payment_channel = substr(name, length('refunds-') + 1)
WHERE name LIKE 'refunds-%' AND EXISTS (SELECT FROM refunds r WHERE 'refunds-' || r.channel = c.name);

-- Overdue payments are looked for channel by channel.
DROP INDEX payments_to_ask;
CREATE INDEX payments_to_ask ON payments (channel, ask_at) WHERE ask_at IS NOT NULL;
