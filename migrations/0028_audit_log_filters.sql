-- The console searches the audit log by actor, action, subject and time, and shows the newest alarms of some kinds.

-- Each ends with the id, which is the order of what is shown: the newest lines of one actor are read without reading others'.
CREATE INDEX audit_log_by_actor ON audit_log (actor, id);
CREATE INDEX audit_log_by_action ON audit_log (action, id);
-- The subject of a policy lists up to a hundred applications, more than an entry of an index can hold: a longer entry would make the
-- change itself fail. The beginning is enough to find the line.
CREATE INDEX audit_log_by_subject ON audit_log (left(subject, 100), id);
CREATE INDEX audit_log_by_time ON audit_log (at);

-- Open alarms first, then the newest.
CREATE INDEX alarms_newest ON alarms ((cleared_at IS NULL) DESC, id DESC);
