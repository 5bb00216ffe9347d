-- Special accounts: balances of Funding that may be below zero, for example for fees and clearing.
-- Operators make and end them. No transaction sets anything of one apart: it is booked at the
-- confirm.

-- The defaults need no pass over the tables, and neither do the checks: a start validates them in
-- steps of their own (src/postgres/checks.rs). No row of before breaks them.
ALTER TABLE balances_tb
    ADD COLUMN special BOOLEAN NOT NULL DEFAULT FALSE,
    ADD CONSTRAINT balances_special_check CHECK (special OR available >= 0) NOT VALID,
    DROP CONSTRAINT balances_tb_available_check;

-- Empty, after one pass over the table.
CREATE INDEX balances_special ON balances_tb (user_id, asset_id) WHERE special;

-- The hold of a special place has no amount apart, and takes what its legs take.
ALTER TABLE funding_holds
    ADD COLUMN special BOOLEAN NOT NULL DEFAULT FALSE,
    ADD CONSTRAINT funding_holds_special_check CHECK (NOT special OR amount = 0 AND purpose = 0)
        NOT VALID,
    ADD CONSTRAINT funding_holds_ended_check CHECK (
        CASE WHEN state = 40 THEN (special OR taken = amount) AND settled_after IS NOT NULL
             ELSE taken = 0 AND brought = 0 AND settled_after IS NULL END) NOT VALID,
    DROP CONSTRAINT funding_holds_settled_check;

-- Rows of a flight, see src/postgres/flight/flight.sql.
ALTER TYPE flight_hold ADD ATTRIBUTE special BOOLEAN;
