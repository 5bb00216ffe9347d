-- Callbacks of payment channels as they came, of payments that an operator must look at. They hold
-- the words of the channel, and may hold data of the payer: no log has them, and they are deleted
-- in time. Nothing rests on them. src/postgres/admin/notices.rs writes them.

CREATE TABLE channel_notices (
    at         TIMESTAMPTZ NOT NULL,
    notice_id  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payment_id UUID NOT NULL,                    -- it may have no row
    channel    VARCHAR(16) NOT NULL,
    trade_no   VARCHAR(128) NOT NULL,
    outcome    TEXT NOT NULL,                    -- HELD, MISSING or CONTRADICTION
    head       TEXT[] NOT NULL,                  -- the headers of its signature, "name: value"
    body       BYTEA NOT NULL                    -- as it was signed
);

CREATE INDEX channel_notices_by_payment ON channel_notices (payment_id, notice_id);
CREATE INDEX channel_notices_at ON channel_notices (at);

-- Lists of receivables, oldest first.
CREATE INDEX receivables_by_time ON receivables_tb (at, return_id);

-- The deliveries of one recharge, as V9 has those of a transaction.
CREATE INDEX webhook_deliveries_of_recharge ON webhook_deliveries (req_id) WHERE kind = 3;
