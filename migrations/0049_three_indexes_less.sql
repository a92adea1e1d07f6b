-- The three migrations before have better ones.
DROP INDEX outflow_items_oldest;
DROP INDEX refunds_under_way;
DROP INDEX payments_created;
