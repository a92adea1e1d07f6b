-- When the messages of a sale that ended long ago may be cleared, and its orders' steps later. The auditor no longer expects
-- them from then on.
ALTER TABLE sales ADD COLUMN cleared_at timestamptz, ADD COLUMN steps_cleared_at timestamptz;
