-- Purpose: reads the ids by which sale_begin decides whether this server may serve a sale (protocol, rule 10). It changes nothing.
--
-- Replies: {"run_id|bytes" of this_server, or "" before Redis 7.0; the replication id, or "" where INFO shows none}

return { this_server() or '', (replication_ids()) or '' }
