-- The group row that an order was made from; NULL where it was made from a purchase row. The group row has the address that the purchase
-- came from, which a lapsed hold is written down with, and the auditor compares the order with it. No foreign key: group rows of sales
-- that ended long ago are cleared, and orders stay.
ALTER TABLE orders ADD COLUMN group_id uuid;
