-- A sale may ask for a proof of work, too: for those who cannot see, and for shops that want no pictures.

-- Changing a constraint takes a moment, but it waits for those who use the table, and all others wait behind it. Better no change
-- than such a wait: `seckill migrate` can be repeated.
SET LOCAL lock_timeout = '1s';

ALTER TABLE sales
    DROP CONSTRAINT sales_captcha_known,
    ADD CONSTRAINT sales_captcha_known CHECK (captcha IN ('none', 'image', 'slider', 'work'));
