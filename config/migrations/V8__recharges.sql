-- Recharges: money that comes in through payment channels. Orders, payments, returns and
-- receivables are written by the flights of their user's worker alone, each row by its version. The
-- rules are in src/recharge.rs; functions and guards stand in src/postgres/sql/recharges.sql.
--
-- Nothing reads or writes these tables while recharges are off.

CREATE TYPE recharge_step AS (
    at     TIMESTAMPTZ,
    state  SMALLINT,
    actor  TEXT,
    reason TEXT
);

-- One row for each order. A flight passes whole rows, so the order of the columns counts.
CREATE TABLE recharges_tb (
    user_id     BIGINT NOT NULL CHECK (user_id > 0),
    amount      BIGINT NOT NULL CHECK (amount > 0),
    bonus       BIGINT NOT NULL CHECK (bonus >= 0),
    minor_units BIGINT NOT NULL CHECK (minor_units > 0),     -- the amount, as its channel counts
    version     BIGINT NOT NULL CHECK (version > 0),
    created_at  TIMESTAMPTZ NOT NULL,
    expires_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
    paid_at     TIMESTAMPTZ,
    next_at     TIMESTAMPTZ,                     -- when the till looks at it; NULL: never
    recharge_id UUID PRIMARY KEY,
    asset_id    INTEGER NOT NULL CHECK (asset_id > 0),
    payments    INTEGER NOT NULL CHECK (payments >= 0),      -- rows of channel_payments
    held        INTEGER NOT NULL CHECK (held BETWEEN 0 AND payments),
    attempts    INTEGER NOT NULL CHECK (attempts > 0),
    state       SMALLINT NOT NULL CHECK (state IN (0, 10, 40, -10)),
    target      SMALLINT NOT NULL CHECK (target IN (1, 2)),  -- 1 Funding, 2 Spot
    closing     SMALLINT CHECK (closing BETWEEN 1 AND 4),    -- the wish to close it
    code        SMALLINT,                        -- why it is closed
    channel     VARCHAR(16) NOT NULL,
    promotion   VARCHAR(16),
    idem_key    VARCHAR(64) NOT NULL,
    fingerprint TEXT NOT NULL,                   -- a repeat of the key must equal it
    reference   TEXT,                            -- the channel's own number of the order
    pay         TEXT,                            -- what the payer needs
    history     recharge_step[] NOT NULL,
    CONSTRAINT recharges_paid_check CHECK ((paid_at IS NOT NULL) = (state = 40)),
    UNIQUE (user_id, idem_key)
) WITH (fillfactor = 60);

CREATE INDEX recharges_by_user ON recharges_tb (user_id, recharge_id);
CREATE INDEX recharges_open ON recharges_tb (user_id) WHERE state IN (0, 10);
-- The audit passes them by time.
CREATE INDEX recharges_paid ON recharges_tb (paid_at) WHERE state = 40;
CREATE INDEX recharges_due ON recharges_tb (next_at) WHERE next_at IS NOT NULL;

-- One row for each payment. It is decided once.
CREATE TABLE channel_payments (
    minor_units BIGINT NOT NULL CHECK (minor_units > 0),
    amount      BIGINT CHECK (amount > 0),       -- NULL: no amount stands for it
    version     BIGINT NOT NULL CHECK (version > 0),
    user_id     BIGINT CHECK (user_id > 0),      -- that was credited
    paid_at     TIMESTAMPTZ NOT NULL,            -- by the channel's clock
    at          TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
    payment_id  UUID NOT NULL UNIQUE,
    recharge_id UUID,                            -- NULL: no order was found
    asset_id    INTEGER NOT NULL CHECK (asset_id > 0),
    ordinal     INTEGER CHECK (ordinal > 0),     -- among the payments of its order
    disposition SMALLINT NOT NULL CHECK (disposition IN (10, 20, 40, -30, -40)),
    cause       SMALLINT CHECK (cause BETWEEN 1 AND 11),
    seen_by     SMALLINT NOT NULL CHECK (seen_by BETWEEN 1 AND 4),
    channel     VARCHAR(16) NOT NULL,
    currency    TEXT NOT NULL,
    merchant_no TEXT NOT NULL,
    trade_no    VARCHAR(128) NOT NULL,
    PRIMARY KEY (channel, trade_no),
    UNIQUE (recharge_id, ordinal),
    CONSTRAINT channel_payments_matched_check
        CHECK ((recharge_id IS NULL) = (ordinal IS NULL)),
    CONSTRAINT channel_payments_credited_check
        CHECK ((disposition = 40) = (user_id IS NOT NULL) AND (disposition <> 40 OR amount > 0)),
    CONSTRAINT channel_payments_held_check CHECK (disposition <> 10 OR cause IS NOT NULL)
) WITH (fillfactor = 80);

CREATE INDEX channel_payments_held ON channel_payments (at) WHERE disposition IN (10, 20);
-- The audit passes them by time.
CREATE INDEX channel_payments_updated ON channel_payments (updated_at);

CREATE TABLE recharge_returns (
    minor_units       BIGINT NOT NULL CHECK (minor_units > 0),
    bonus             BIGINT NOT NULL CHECK (bonus >= 0),
    version           BIGINT NOT NULL CHECK (version > 0),
    next_at           TIMESTAMPTZ,               -- when the till looks at it; NULL: never
    created_at        TIMESTAMPTZ NOT NULL,
    updated_at        TIMESTAMPTZ NOT NULL,
    return_id         UUID PRIMARY KEY,
    payment_id        UUID NOT NULL,
    kind              SMALLINT NOT NULL
                      CHECK (kind IN (1, 2, 3)), -- 1 asked by us, 2 taken, 3 given back
    state             SMALLINT NOT NULL CHECK (state IN (0, 10, 20, 40, -10)),
    idem_key          VARCHAR(64) UNIQUE,
    channel_return_no VARCHAR(128),
    UNIQUE (payment_id, channel_return_no)
) WITH (fillfactor = 80);

CREATE INDEX recharge_returns_due ON recharge_returns (next_at) WHERE next_at IS NOT NULL;

-- The part of taken money that a user did not have.
CREATE TABLE receivables_tb (
    user_id     BIGINT NOT NULL CHECK (user_id > 0),
    amount      BIGINT NOT NULL CHECK (amount > 0),
    recovered   BIGINT NOT NULL DEFAULT 0 CHECK (recovered >= 0),
    written_off BIGINT NOT NULL DEFAULT 0 CHECK (written_off >= 0),
    version     BIGINT NOT NULL CHECK (version > 0),
    at          TIMESTAMPTZ NOT NULL,
    return_id   UUID PRIMARY KEY,
    asset_id    INTEGER NOT NULL CHECK (asset_id > 0),
    CONSTRAINT receivables_ended_check CHECK (recovered + written_off <= amount)
);

CREATE INDEX receivables_open ON receivables_tb (user_id)
    WHERE recovered + written_off < amount;

-- Every unit that a recharge moves, from a debit to a credit account: user/{id},
-- {channel}/clearing, {channel}/suspense, outside. Written once.
CREATE TABLE recharge_movements (
    amount       BIGINT NOT NULL CHECK (amount > 0),
    at           TIMESTAMPTZ NOT NULL,
    recharge_id  UUID,
    payment_id   UUID NOT NULL,
    asset_id     INTEGER NOT NULL CHECK (asset_id > 0),
    kind         SMALLINT NOT NULL
                 CHECK (kind IN (1, 2, 3, 4)),   -- 1 credit, 2 suspense, 3 dismiss, 4 return
    debit        TEXT NOT NULL,
    credit       TEXT NOT NULL CHECK (credit <> debit),
    movement_key VARCHAR(64) PRIMARY KEY
);

CREATE INDEX recharge_movements_by_payment ON recharge_movements (payment_id);
-- The audit passes them by time.
CREATE INDEX recharge_movements_at ON recharge_movements (at);

-- The credits of recharges among all external operations: the audit looks for those without a
-- movement. No other key begins like that, so it is empty while recharges are off.
CREATE INDEX external_operations_of_recharges ON external_operations (at)
    WHERE idem_key LIKE 'recharge/%' OR idem_key LIKE 'payment/%' OR idem_key LIKE 'return/%';
