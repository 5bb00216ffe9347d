-- The till: how far the money of an order has gone on, and the tries of a return. A flight passes
-- whole rows, so new columns stand at the end.

-- 0: not at its target yet. The default needs no pass over the table, and neither does the check:
-- no row of before breaks it.
ALTER TABLE recharges_tb
    ADD COLUMN follow_req_id UUID,               -- the transfer to Spot
    ADD COLUMN follow_state SMALLINT NOT NULL DEFAULT 0, -- 40 arrived, -10 failed, -20 given up
    ADD COLUMN follow_code SMALLINT,             -- why it did not go on
    ADD CONSTRAINT recharges_follow_check
        CHECK (follow_state IN (0, 40, -10, -20) AND (follow_state = 0 OR state = 40)) NOT VALID;

ALTER TABLE recharge_returns
    ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0,
    ADD CONSTRAINT recharge_returns_attempts_check CHECK (attempts >= 0) NOT VALID;

-- What the till does with a row that is due: 1 create, 2 close, 3 query, 4 follow, 0 nothing. Each
-- channel has its own due rows, so that one that hangs hides those of no other.
DROP INDEX recharges_due;
CREATE INDEX recharges_due ON recharges_tb (
    channel,
    (CASE WHEN state = 40 THEN 4
          WHEN state = -10 OR held > 0 THEN 0
          WHEN closing IS NOT NULL THEN 2
          WHEN state = 0 THEN 1
          ELSE 3 END),
    next_at
) WHERE next_at IS NOT NULL;
