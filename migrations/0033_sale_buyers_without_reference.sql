-- A buyer's counter no longer refers to its sale. PostgreSQL looked the sale up, and locked its row, for each row of a counter:
-- hundreds of times in a transaction of fulfilment, although that transaction makes an order beside each counter, and an order
-- refers to the sale. So a counter of a sale that does not exist still cannot be committed, and a sale with orders still cannot be
-- deleted. Counters are written by nothing else.
--
-- Both tables are locked for a moment. `sales` first: fulfilment reads it before it writes counters, and whoever locks the two the other
-- way round waits for fulfilment in a circle.
LOCK TABLE sales IN ACCESS EXCLUSIVE MODE;
ALTER TABLE sale_buyers DROP CONSTRAINT sale_buyers_sale_id_fkey;
