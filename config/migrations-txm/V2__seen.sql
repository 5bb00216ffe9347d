-- seen_nonce: the nonce behind the last one that a node has seen signed, before the rows became an
-- older copy. What was signed with those from the cursor up to it may still be mined.
-- again_at: the last time at which the reason came up again.
ALTER TABLE txm.signer_suspensions
    ADD COLUMN seen_nonce BIGINT CHECK (seen_nonce > 0),
    ADD COLUMN again_at TIMESTAMPTZ;

-- A nonce has one row, and at most one more that has lost it to another transaction (code 6,
-- NONCE_TAKEN). That transaction may be a payment of ours: then an adoption gives it its row.
ALTER TABLE txm.managed_tx DROP CONSTRAINT managed_tx_signer_nonce_key;
CREATE UNIQUE INDEX managed_tx_nonce
    ON txm.managed_tx (signer, nonce, (code IS NOT DISTINCT FROM 6));

-- The rows that have lost their nonce: an adoption names those behind the suspension.
CREATE INDEX managed_tx_taken ON txm.managed_tx (signer, nonce) WHERE code = 6;
