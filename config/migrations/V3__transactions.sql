-- Transactions across both stores and other services: the row that decides each, its branches, and
-- the roles that may decide one in a local transaction of their own. Functions, guards and views
-- stand in src/postgres/sql/transactions.sql.

-- One row for each transaction. It is never deleted. The service writes it, and one foreign session
-- may: a caller's, through transaction_commit.
CREATE TABLE transactions_tb (
    order_number   BIGINT NOT NULL UNIQUE,       -- of its first accept, shared with transfers_tb
    incarnation    BIGINT NOT NULL,              -- of the process that wrote it last
    created_at     TIMESTAMPTZ NOT NULL,
    updated_at     TIMESTAMPTZ NOT NULL,
    expires_at     TIMESTAMPTZ NOT NULL,         -- beyond it an undecided one is aborted
    decided_at     TIMESTAMPTZ,
    finished_at    TIMESTAMPTZ CHECK ((finished_at IS NULL) = (state NOT IN (40, -20))),
    transaction_id UUID PRIMARY KEY,
    state          SMALLINT NOT NULL CHECK (state IN (0, 20, 30, 40, -10, -20)),
    decide         SMALLINT NOT NULL
                   CHECK (decide IN (1, 2, 3)),  -- 1 coordinator, 2 caller, 3 last participant
    rounds         SMALLINT NOT NULL CHECK (rounds BETWEEN 0 AND 8),
    code           SMALLINT,                     -- why it is aborted
    -- The decision is proven durable. A caller's session may commit its decision without waiting
    -- for the disk, so nothing leaves on it before a later commit of the service.
    sealed         BOOLEAN NOT NULL DEFAULT FALSE CHECK (sealed OR state NOT IN (40, -10, -20)),
    owner          TEXT NOT NULL,
    tx_id          VARCHAR(64) NOT NULL,
    decided_by     TEXT CHECK ((decided_by IS NULL) = (decided_at IS NULL)),
    detail         TEXT,                         -- for people
    history        JSONB NOT NULL DEFAULT '[]',  -- each passage: state, at, by, reason
    UNIQUE (owner, tx_id),
    CONSTRAINT transactions_decided_check CHECK ((decided_at IS NULL) = (state IN (0, 20)))
) WITH (fillfactor = 60);

-- For each tick of the manager, and for the watermark.
CREATE INDEX transactions_unfinished ON transactions_tb (order_number)
    WHERE state NOT IN (40, -20);
CREATE INDEX transactions_unsealed ON transactions_tb (order_number)
    WHERE state = 30 AND NOT sealed;
-- For lists.
CREATE INDEX transactions_by_owner ON transactions_tb (owner, order_number);
CREATE INDEX transactions_by_state ON transactions_tb (state, order_number);

-- The part of one party in one round.
CREATE TABLE transaction_branches (
    updated_at       TIMESTAMPTZ NOT NULL,
    log_sequence     BIGINT,                     -- of UBSCore's newest answer
    transaction_id   UUID NOT NULL,
    round            SMALLINT NOT NULL CHECK (round BETWEEN 1 AND 8),
    state            SMALLINT NOT NULL CHECK (state IN (10, 20, 40, -10, -20)),
    code             SMALLINT,                   -- of a refusal
    leg              SMALLINT CHECK (leg >= 0),  -- the first one that failed
    last             BOOLEAN NOT NULL,           -- it has no try: its one answer decides
    participant      TEXT NOT NULL CHECK (octet_length(participant) BETWEEN 1 AND 32),
    participant_code TEXT,
    fingerprint      BYTEA NOT NULL CHECK (octet_length(fingerprint) = 16),  -- of the whole round
    legs             JSONB NOT NULL,             -- from, to, asset, amount in smallest units
    payload          JSON NOT NULL,              -- as it was given, letter by letter
    PRIMARY KEY (transaction_id, round, participant)
) WITH (fillfactor = 70);

-- The roles that may call transaction_commit, each for the transactions of these owners.
CREATE TABLE transaction_grants (
    at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    role_name NAME NOT NULL,
    owner     TEXT NOT NULL,
    PRIMARY KEY (role_name, owner)
);

-- The abort of a transaction may need two operators.
ALTER TABLE approvals_tb
    DROP CONSTRAINT approvals_tb_action_check,
    ADD CONSTRAINT approvals_tb_action_check
        CHECK (action IN ('resolve', 'resume', 'external', 'hold', 'transaction'));
