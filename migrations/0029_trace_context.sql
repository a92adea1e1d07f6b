-- Where in a trace a purchase or a payment stands, so that what follows in other processes belongs to the same trace
-- (docs/tracing.md). NULL for all that are not sampled, which is nearly all of them.
--
-- The text is a W3C traceparent (55 characters) and, behind a space, a tracestate of at most 512.
--
--   outbox   of order_placed and payment_requested: the step that wrote the row. The relay's message carries it on.
--   orders   the step that made the order. Payments and webhooks of the order continue from there.
--
-- Versions without the columns run beside this one: they neither name nor need them. What they write has NULL here; where they relay
-- a message it has no trace in its headers, and fulfilment takes the purchase row's; an order that they make has none.

-- The type's own bound, and no CHECK: PostgreSQL would read the whole table to validate it.
ALTER TABLE outbox ADD COLUMN trace varchar(568);
ALTER TABLE orders ADD COLUMN trace varchar(568);
