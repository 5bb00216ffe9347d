-- Freezes by purpose: money of a user that is frozen until it is unfrozen. All freezes of a user,
-- asset and purpose are one amount.
--
-- A hold of Funding takes from one place, gives back to it and brings there: the available
-- balance, or the freeze of its purpose. `balances_tb.frozen` is the sum of the freezes and the
-- open holds of its user and asset. A freeze and the open holds of its purpose together have the
-- amount that the settled holds of that purpose have brought and not taken.

CREATE TABLE freezes_tb (
    user_id  BIGINT NOT NULL CHECK (user_id > 0),
    asset_id INTEGER NOT NULL CHECK (asset_id > 0),
    purpose  INTEGER NOT NULL CHECK (purpose BETWEEN 1 AND 65535),  -- of holds.purposes
    amount   NUMERIC(38,0) NOT NULL CHECK (amount >= 0),            -- smallest units
    PRIMARY KEY (user_id, asset_id, purpose)
) WITH (fillfactor = 80);

-- 0: the available balance. The default needs no pass over the table, and neither does the check:
-- no row of before breaks it.
ALTER TABLE funding_holds
    ADD COLUMN purpose INTEGER NOT NULL DEFAULT 0,
    ADD CONSTRAINT funding_holds_purpose_check CHECK (purpose BETWEEN 0 AND 65535) NOT VALID;

-- The audit adds up the holds of each purpose.
CREATE INDEX funding_holds_of_purposes ON funding_holds (user_id, asset_id, purpose)
    WHERE purpose <> 0;

-- Rows of a flight, see src/postgres/flight/flight.sql.
ALTER TYPE flight_hold ADD ATTRIBUTE purpose INTEGER;

CREATE TYPE flight_freeze AS (
    user_id  BIGINT,
    asset_id INTEGER,
    purpose  INTEGER,
    before   NUMERIC,                                -- NULL: there is no row
    after    NUMERIC
);
