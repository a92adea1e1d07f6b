-- A payment that waits to be sent again, and whose order ends meanwhile, may have reached its channel the first time: the
-- channel is asked about it.
INSERT INTO money_status_steps (what, from_status, to_status) VALUES ('payments', 'created', 'waiting');
