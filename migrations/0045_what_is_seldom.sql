-- What workers look for again and again, and seldom find: without these they would read all orders of a sale, and all payments that wait.
CREATE INDEX orders_unsettled ON orders (sale_id) WHERE status IN ('pending_payment', 'refunding');
CREATE INDEX payments_taken_back ON payments (id) WHERE status = 'created' AND claim > 0;
