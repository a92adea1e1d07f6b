-- Purpose: says what a script sees of the server that it runs on, by which sale_begin decides whether the server may serve a sale
--          (protocol, rule 10). It reads no key and changes nothing.
--
-- Replies: {"run_id|bytes" of this_server, or "" before Redis 7.0; the replication id, or "" where INFO shows none}

return { this_server() or '', (replication_ids()) or '' }
