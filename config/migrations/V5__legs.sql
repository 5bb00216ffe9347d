-- Legs of transactions between the stores, and from and to the outside of both.

-- The external money of the transactions below the watermark, by the user of the other place.
ALTER TABLE watermark_totals
    ADD COLUMN transaction_deposited NUMERIC(38,0) NOT NULL DEFAULT 0
        CHECK (transaction_deposited >= 0),
    ADD COLUMN transaction_withdrawn NUMERIC(38,0) NOT NULL DEFAULT 0
        CHECK (transaction_withdrawn >= 0);

-- A read of both stores finds the transactions that Spot has booked behind its record.
CREATE INDEX transaction_branches_booked ON transaction_branches (log_sequence)
    WHERE participant = 'SPOT' AND state = 40;
