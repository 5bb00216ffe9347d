-- Legs of transactions from and to the outside of both stores are external operations: each has a
-- row of external_operations, under the key `tx/{hold_key}/in` or `tx/{hold_key}/out`, and a record
-- in UBSCore's log.

-- The money that the Settle of a hold has brought from outside, and taken there. `brought` and
-- `taken` do not have it. 0 in every hold of before: there they do, and such legs still count by
-- themselves. The default needs no pass over the table, and neither do the checks: no row of
-- before breaks them.
ALTER TABLE funding_holds
    ADD COLUMN deposited BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN withdrawn BIGINT NOT NULL DEFAULT 0,
    ADD CONSTRAINT funding_holds_outside_check CHECK (
        deposited >= 0 AND withdrawn >= 0
        AND (deposited = 0 AND withdrawn = 0 OR state = 40 AND purpose = 0)) NOT VALID,
    DROP CONSTRAINT funding_holds_ended_check,
    -- Money beyond the amount apart has come by the same Settle. A special place takes any amount.
    ADD CONSTRAINT funding_holds_settled_check CHECK (
        CASE WHEN state = 40
             THEN settled_after IS NOT NULL
                  AND CASE WHEN special THEN TRUE
                           WHEN deposited = 0 AND withdrawn = 0 THEN taken = amount
                           ELSE taken::numeric + withdrawn
                                BETWEEN amount AND amount::numeric + brought + deposited END
             ELSE taken = 0 AND brought = 0 AND settled_after IS NULL END) NOT VALID;

-- Those that the deletion passes over.
DROP INDEX funding_holds_empty;
CREATE INDEX funding_holds_empty ON funding_holds (order_number)
    WHERE state <> 10 AND taken = 0 AND brought = 0 AND deposited = 0 AND withdrawn = 0;

-- Rows of a flight, see src/postgres/flight/flight.sql.
ALTER TYPE flight_hold
    ADD ATTRIBUTE deposited BIGINT,
    ADD ATTRIBUTE withdrawn BIGINT;
