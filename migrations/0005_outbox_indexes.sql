-- Each reader of the outbox has an index of its own: the releaser does not wade through what waits for a broker that is
-- away, and the sweeper does not read every unpaid order's expiry.

DROP INDEX outbox_to_send;
CREATE INDEX outbox_to_send ON outbox (next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('order_placed', 'order_expire');
CREATE INDEX outbox_to_release ON outbox (next_attempt_at, id)
    WHERE status = 'pending' AND kind IN ('hold_release', 'wave_release');

DROP INDEX outbox_unsettled;
CREATE INDEX outbox_unsettled_purchases ON outbox (sent_at) WHERE status = 'sent' AND kind = 'order_placed';
CREATE INDEX outbox_unsettled_expiries ON outbox (due_at) WHERE status = 'sent' AND kind = 'order_expire';
