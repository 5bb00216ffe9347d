-- Holds of Funding: money of a user that is set apart under a key. The rule is in
-- domain/src/hold.rs, and it is decided in the user's own flight.
--
-- `balances_tb.frozen` is the sum of the open holds of its user and asset. A settled hold changes
-- the sum of the balance by brought - taken; over all users and all holds of one transaction that
-- is 0.

CREATE TABLE funding_holds (
    order_number  BIGINT NOT NULL CHECK (order_number > 0),  -- of its transaction
    user_id       BIGINT NOT NULL CHECK (user_id > 0),
    amount        BIGINT NOT NULL CHECK (amount >= 0),       -- apart, or apart until its end
    asked         BIGINT NOT NULL CHECK (asked >= 0),        -- by the newest round
    taken         BIGINT NOT NULL CHECK (taken >= 0),        -- by its Settle
    brought       BIGINT NOT NULL CHECK (brought >= 0),      -- by its Settle
    created_at    TIMESTAMPTZ NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL,
    asset_id      INTEGER NOT NULL CHECK (asset_id > 0),
    state         SMALLINT NOT NULL
                  CHECK (state IN (10, 40, -20)),  -- 10 held, 40 settled, -20 released
    round         SMALLINT NOT NULL CHECK (round BETWEEN 0 AND 255),     -- 0: none was decided
    round_code    SMALLINT,                        -- why the newest round was refused
    reason        SMALLINT NOT NULL CHECK (reason > 0),    -- 1 transaction
    pays          BOOLEAN NOT NULL,                -- the newest round needed the status of a payer
    paid          BOOLEAN NOT NULL,                -- the newest round needed that of a payee
    settled_after NUMERIC(38,0),                   -- available + frozen behind its Settle
    hold_key      VARCHAR(96) PRIMARY KEY,
    CONSTRAINT funding_holds_settled_check CHECK (
        CASE WHEN state = 40 THEN taken = amount AND settled_after IS NOT NULL
             ELSE taken = 0 AND brought = 0 AND settled_after IS NULL END)
) WITH (fillfactor = 80);

CREATE INDEX funding_holds_open ON funding_holds (user_id, asset_id) WHERE state = 10;
-- The watermark and the deletion pass them in this order.
CREATE INDEX funding_holds_by_number ON funding_holds (order_number);
CREATE INDEX funding_holds_empty ON funding_holds (order_number)
    WHERE state <> 10 AND taken = 0 AND brought = 0;
CREATE INDEX funding_holds_moved ON funding_holds (user_id) WHERE state = 40;

-- The sums of the settled holds below the watermark.
ALTER TABLE watermark_totals
    ADD COLUMN transaction_taken   NUMERIC(38,0) NOT NULL DEFAULT 0
        CHECK (transaction_taken >= 0),
    ADD COLUMN transaction_brought NUMERIC(38,0) NOT NULL DEFAULT 0
        CHECK (transaction_brought >= 0);

-- Rows of a flight, see src/postgres/flight/flight.sql: a hold before and after, and the frozen
-- part of a balance.
CREATE TYPE flight_hold AS (
    order_number  BIGINT,
    user_id       BIGINT,
    asset_id      INTEGER,
    hold_key      TEXT,
    was_state     SMALLINT,                        -- NULL: there is no row
    was_round     SMALLINT,
    was_amount    BIGINT,
    state         SMALLINT,
    amount        BIGINT,
    round         SMALLINT,
    round_code    SMALLINT,
    asked         BIGINT,
    pays          BOOLEAN,
    paid          BOOLEAN,
    taken         BIGINT,
    brought       BIGINT,
    reason        SMALLINT,
    settled_after NUMERIC
);

CREATE TYPE flight_frozen AS (
    user_id  BIGINT,
    asset_id INTEGER,
    frozen   NUMERIC                               -- afterwards
);
