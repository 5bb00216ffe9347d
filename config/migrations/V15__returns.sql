-- Refunds of credited payments, money that channels take and give back, and receivables. The rules
-- are in src/recharge/returned.rs; the guards stand in src/postgres/sql/recharges.sql.

-- A channel may give one number to a taking and to its end.
ALTER TABLE recharge_returns
    ADD COLUMN code SMALLINT,                    -- why it has failed
    DROP CONSTRAINT recharge_returns_payment_id_channel_return_no_key,
    ADD CONSTRAINT recharge_returns_of_channel_key UNIQUE (payment_id, kind, channel_return_no);

-- The audit passes them by time.
CREATE INDEX recharge_returns_updated ON recharge_returns (updated_at);

-- One act on a receivable: 1 recovered from its user, 2 written off, 3 given back by the channel.
CREATE TYPE receivable_act AS (
    at       TIMESTAMPTZ,
    kind     SMALLINT,
    amount   BIGINT,
    idem_key TEXT,                               -- a repeat of an operator's act
    actor    TEXT
);

-- Money that the channel gives back counts as recovered.
ALTER TABLE receivables_tb
    ADD COLUMN updated_at TIMESTAMPTZ NOT NULL,
    ADD COLUMN payment_id UUID NOT NULL,
    ADD COLUMN acts receivable_act[] NOT NULL;

CREATE INDEX receivables_by_payment ON receivables_tb (payment_id);
CREATE INDEX receivables_updated ON receivables_tb (updated_at);

-- Further kinds: 5 refund, 6 taken, 7 short, 8 given back, 9 of a receivable, 10 recovered,
-- 11 written off, 12 loss. The check needs no pass: no row of before breaks it.
ALTER TABLE recharge_movements
    DROP CONSTRAINT recharge_movements_kind_check,
    ADD CONSTRAINT recharge_movements_kind_check CHECK (kind BETWEEN 1 AND 12) NOT VALID;

-- A taking names its payment by the channel's own number, or its order by that.
CREATE INDEX recharges_by_reference ON recharges_tb (reference) WHERE reference IS NOT NULL;
