-- Receivers of outflows may be spoken to over TLS.
ALTER TABLE outflow_channels
    DROP CONSTRAINT outflow_channels_target_http,
    ADD CONSTRAINT outflow_channels_target_http CHECK (target ~ '^https?://[^[:space:]]+$' AND length(target) <= 2000);
