-- The watermark passes a transaction once Funding and Spot have carried out its decision. A service
-- that never answers its confirm or cancel keeps the row from its final state, and nothing else.

-- When the service recorded that both stores have ended: booked, or given back. NULL before that,
-- and in rows that ended before this column was there. Below the watermark neither store knows the
-- transaction any more, so neither is asked again once this is set.
ALTER TABLE transactions_tb
    ADD COLUMN stores_ended_at TIMESTAMPTZ,
    ADD CONSTRAINT transactions_stores_ended_check
        CHECK (stores_ended_at IS NULL OR sealed AND state NOT IN (0, 20));
