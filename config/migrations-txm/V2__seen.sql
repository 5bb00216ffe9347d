-- The next nonce that a node has seen before the rows became an older copy. Those from the cursor
-- up to it were given, and what was signed with them may still be mined.
ALTER TABLE txm.signer_suspensions ADD COLUMN seen_nonce BIGINT CHECK (seen_nonce > 0);

-- A nonce has one row, and at most one more that has lost it to another transaction (code 6,
-- NONCE_TAKEN). That transaction may be a payment of ours: then an adoption gives it its row.
ALTER TABLE txm.managed_tx DROP CONSTRAINT managed_tx_signer_nonce_key;
CREATE UNIQUE INDEX managed_tx_nonce
    ON txm.managed_tx (signer, nonce, (code IS NOT DISTINCT FROM 6));
