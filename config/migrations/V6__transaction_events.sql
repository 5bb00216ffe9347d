-- Events of transactions that are DONE, for the streams of their users, for the webhook, and for
-- followers: services that are notified of a transaction and take no part in it.

-- The followers of the whole round, by their names in the configuration.
ALTER TABLE transaction_branches
    ADD COLUMN followers TEXT[] NOT NULL DEFAULT '{}';

-- One row for each user of a transaction that is DONE. It is never deleted, as transactions are
-- not. Ids come from the counter that events of transfers have. One session writes them, so those
-- of all users rise with its commits.
CREATE TABLE transaction_events (
    event_id       BIGINT NOT NULL,
    user_id        BIGINT NOT NULL,
    transaction_id UUID NOT NULL,
    PRIMARY KEY (event_id, user_id)
);

CREATE INDEX transaction_events_by_user ON transaction_events (user_id, event_id);

-- req_id is the id of a transfer, or of a transaction.
ALTER TABLE webhook_deliveries
    ADD COLUMN kind SMALLINT NOT NULL DEFAULT 1
        CHECK (kind IN (1, 2));                  -- 1 transfer, 2 transaction
