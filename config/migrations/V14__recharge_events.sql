-- Events of recharges: the entries of the journal that their users see, by user, so that a stream
-- that was away finds them. A flight writes them with its entries, and they are never deleted, as
-- recharges are not. Ids are those of the flight's events.

-- A flight passes whole rows, so the order of the columns counts.
CREATE TABLE recharge_events (
    event_id    BIGINT PRIMARY KEY,
    user_id     BIGINT NOT NULL CHECK (user_id > 0),
    at          TIMESTAMPTZ NOT NULL,
    recharge_id UUID,                            -- NULL: a payment without an order
    payment_id  UUID,                            -- NULL: the event is of the order alone
    change      SMALLINT NOT NULL CHECK (change BETWEEN 1 AND 8),
    state       SMALLINT CHECK (state IN (0, 10, 40, -10)),  -- of the order then
    cause       SMALLINT CHECK (cause BETWEEN 1 AND 11),     -- why a payment is held
    CONSTRAINT recharge_events_subject_check
        CHECK (recharge_id IS NOT NULL OR payment_id IS NOT NULL)
);

CREATE INDEX recharge_events_by_user ON recharge_events (user_id, event_id);

-- req_id is the id of a transfer, of a transaction, or of a recharge.
ALTER TABLE webhook_deliveries DROP CONSTRAINT webhook_deliveries_kind_check;
ALTER TABLE webhook_deliveries ADD CONSTRAINT webhook_deliveries_kind_check
    CHECK (kind IN (1, 2, 3));                   -- 1 transfer, 2 transaction, 3 recharge
