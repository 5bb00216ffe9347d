-- The transaction manager: signers, leases, nonces, transactions and their attempts. Functions and
-- guards stand in src/postgres/txm/sql/. No index names `state`: each change of it would then be a
-- write to every index.

-- One row: the chain, the server and the lease that all nodes share.
CREATE TABLE txm.settings (
    one               BOOLEAN PRIMARY KEY CHECK (one),
    chain_id          BIGINT NOT NULL CHECK (chain_id > 0),
    genesis_hash      BYTEA NOT NULL CHECK (octet_length(genesis_hash) = 32),
    lease_duration    INTERVAL NOT NULL,
    lease_skew        INTERVAL NOT NULL CHECK (lease_skew * 4 < lease_duration),
    -- Of the server. Another one may have an older copy of the rows.
    system_identifier BIGINT NOT NULL,
    timeline          BIGINT NOT NULL,
    epoch             BIGINT NOT NULL  -- of the feed: rises in another cluster with xids of its own
);

-- One row for each process that ever began.
CREATE TABLE txm.nodes (
    incarnation BIGSERIAL PRIMARY KEY,
    node_id     TEXT NOT NULL,         -- for people
    url         TEXT NOT NULL,         -- of its listener
    signers     TEXT[] NOT NULL,       -- those that it can sign for
    started_at  TIMESTAMPTZ NOT NULL,
    seen_at     TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE txm.signers (
    signer   TEXT PRIMARY KEY CHECK (signer ~ '^0x[0-9a-f]{40}$'),
    kind     TEXT NOT NULL CHECK (kind IN ('keystore', 'remote')),
    added_at TIMESTAMPTZ NOT NULL,
    added_by TEXT NOT NULL
);

-- A signer with a row here gets no nonce, and signs no payment and no bump.
CREATE TABLE txm.signer_suspensions (
    signer TEXT NOT NULL REFERENCES txm.signers,
    reason TEXT NOT NULL CHECK (octet_length(reason) BETWEEN 1 AND 128),
    actor  TEXT NOT NULL,
    about  TEXT NOT NULL,
    at     TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (signer, reason)
);

-- The one owner of a signer. A fenced write locks its row FOR SHARE until its commit.
CREATE TABLE txm.signer_lease (
    signer            TEXT PRIMARY KEY REFERENCES txm.signers,
    owner_node        TEXT NOT NULL,
    owner_incarnation BIGINT NOT NULL,
    fencing_token     BIGINT NOT NULL CHECK (fencing_token > 0),
    expires_at        TIMESTAMPTZ NOT NULL,
    updated_at        TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX signer_lease_owner_node ON txm.signer_lease (owner_node);
CREATE INDEX signer_lease_owner ON txm.signer_lease (owner_incarnation, signer);

CREATE TABLE txm.signer_nonce_cursor (
    signer        TEXT PRIMARY KEY REFERENCES txm.signers,
    next_nonce    BIGINT NOT NULL CHECK (next_nonce >= 0),
    fencing_token BIGINT NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- Nonces that no row had when the cursor passed them: first_nonce up to before_nonce, without it.
CREATE TABLE txm.nonce_jumps (
    signer        TEXT NOT NULL REFERENCES txm.signers,
    first_nonce   BIGINT NOT NULL,
    before_nonce  BIGINT NOT NULL CHECK (before_nonce > first_nonce),
    fencing_token BIGINT NOT NULL,
    at            TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (signer, first_nonce)
);

-- One row for each request. It is never deleted.
CREATE TABLE txm.managed_tx (
    nonce            BIGINT CHECK (nonce >= 0),
    gas_limit        BIGINT CHECK (gas_limit > 0),
    version          BIGINT NOT NULL,                -- rises by one with each write
    fencing_token    BIGINT NOT NULL,                -- of its last write; 0: by any node
    created_at       TIMESTAMPTZ NOT NULL,
    updated_at       TIMESTAMPTZ NOT NULL,
    deadline         TIMESTAMPTZ,                    -- beyond it a row without a nonce expires
    first_submit_at  TIMESTAMPTZ,
    last_submit_at   TIMESTAMPTZ,
    next_resubmit_at TIMESTAMPTZ,
    confirmed_at     TIMESTAMPTZ,
    final_at         TIMESTAMPTZ,
    receipt_number   BIGINT,
    fork             INTEGER NOT NULL DEFAULT 0,     -- rises with each list of confirmations that
                                                     -- replaces another one
    resends          INTEGER NOT NULL DEFAULT 0,     -- of the newest attempt
    event_seq        INTEGER NOT NULL DEFAULT 0,     -- the last event of this row
    tx_id            UUID PRIMARY KEY,               -- version 7
    state            SMALLINT NOT NULL CHECK (state IN (0, 10, 20, 30, 40, -10)),
    sub_state        SMALLINT CHECK (sub_state BETWEEN 1 AND 13),
    code             SMALLINT CHECK (code BETWEEN 1 AND 7),
    wish             SMALLINT NOT NULL DEFAULT 0 CHECK (wish IN (0, 1, 2)),
    signer           TEXT NOT NULL,
    request_id       TEXT NOT NULL CHECK (octet_length(request_id) BETWEEN 1 AND 128),
    business_key     TEXT UNIQUE CHECK (octet_length(business_key) BETWEEN 1 AND 128),
    fingerprint      TEXT NOT NULL,                  -- of the payload; '': cancelled before it came
    refusal          TEXT,                           -- the name of the code that refused it
    tx_hash          BYTEA,                          -- of the newest attempt, or the mined one
    receipt_hash     BYTEA,
    cost_wei         NUMERIC(78),
    payload          JSONB NOT NULL,
    receipt          JSONB,
    UNIQUE (signer, request_id),
    UNIQUE (signer, nonce),
    CHECK ((code IS NULL) = (state <> -10)),
    CHECK (nonce IS NOT NULL OR state IN (0, -10)),
    CHECK (nonce IS NULL OR gas_limit IS NOT NULL),
    CHECK (nonce IS NULL OR state <> 0),
    CHECK ((receipt IS NULL) = (receipt_number IS NULL)),
    CHECK ((receipt IS NULL) = (receipt_hash IS NULL)),
    CHECK (final_at IS NULL OR state IN (40, -10))
) WITH (fillfactor = 60);
CREATE INDEX managed_tx_open ON txm.managed_tx (signer, nonce) WHERE final_at IS NULL;
CREATE INDEX managed_tx_unnumbered ON txm.managed_tx (signer, tx_id)
    WHERE nonce IS NULL AND final_at IS NULL;
CREATE INDEX managed_tx_deadline ON txm.managed_tx (signer, deadline)
    WHERE nonce IS NULL AND final_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX managed_tx_by_signer ON txm.managed_tx (signer, tx_id);

-- The bytes that may leave. Written once: only answers are added.
CREATE TABLE txm.tx_attempts (
    tx_id         UUID NOT NULL,
    attempt       INTEGER NOT NULL CHECK (attempt > 0),
    kind          SMALLINT NOT NULL CHECK (kind IN (1, 2, 3, 4)),
    was_in_pool   BOOLEAN NOT NULL DEFAULT FALSE,
    gas           BIGINT NOT NULL CHECK (gas > 0),
    fencing_token BIGINT NOT NULL,
    signed_at     TIMESTAMPTZ NOT NULL,
    answered_at   TIMESTAMPTZ,
    max_fee       NUMERIC(39) NOT NULL,
    max_tip       NUMERIC(39) NOT NULL,
    tx_hash       BYTEA NOT NULL UNIQUE CHECK (octet_length(tx_hash) = 32),
    class         TEXT,                              -- the best of the last answers
    raw           BYTEA NOT NULL,
    answers       JSONB NOT NULL DEFAULT '{}',       -- by endpoint: class, text
    PRIMARY KEY (tx_id, attempt)
) WITH (fillfactor = 60);

-- The blocks from the receipt's up, as events showed them. Appended only.
CREATE TABLE txm.tx_confirmations (
    tx_id        UUID NOT NULL,
    fork         INTEGER NOT NULL,
    block_number BIGINT NOT NULL,
    at           TIMESTAMPTZ NOT NULL,
    block_hash   BYTEA NOT NULL CHECK (octet_length(block_hash) = 32),
    parent_hash  BYTEA NOT NULL CHECK (octet_length(parent_hash) = 32),
    PRIMARY KEY (tx_id, fork, block_number)
);

-- The feed, in the order of its key. Read only below the oldest running transaction.
CREATE TABLE txm.tx_events (
    epoch    BIGINT NOT NULL,
    xid      BIGINT NOT NULL,
    event_id BIGSERIAL,
    at       TIMESTAMPTZ NOT NULL,
    seq      INTEGER NOT NULL,                       -- of the row, without holes
    new_fork BOOLEAN NOT NULL,
    tx_id    UUID NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('state', 'confirmations')),
    body     JSONB NOT NULL,
    PRIMARY KEY (epoch, xid, event_id)
);

-- Each passage of a row.
CREATE TABLE txm.tx_history (
    tx_id      UUID NOT NULL,
    version    BIGINT NOT NULL,
    token      BIGINT NOT NULL,
    at         TIMESTAMPTZ NOT NULL,
    attempts   INTEGER NOT NULL,
    from_state SMALLINT,
    state      SMALLINT NOT NULL,
    sub_state  SMALLINT,
    code       SMALLINT,
    node       TEXT NOT NULL,
    PRIMARY KEY (tx_id, version)
);

-- Written by any node, carried out once by the owner under its token.
CREATE TABLE txm.tx_commands (
    command_id  BIGSERIAL PRIMARY KEY,
    tx_id       UUID,
    at          TIMESTAMPTZ NOT NULL,
    done_at     TIMESTAMPTZ CHECK ((done_at IS NULL) = (state IN (0, 1))),
    state       SMALLINT NOT NULL CHECK (state IN (0, 1, 2, 3)),  -- 0 wants a second operator,
                                                                  -- 1 open, 2 done, 3 refused
    signer      TEXT NOT NULL REFERENCES txm.signers,
    what        TEXT NOT NULL,
    actor       TEXT NOT NULL,
    seconded_by TEXT CHECK (seconded_by <> actor),
    reason      TEXT NOT NULL,
    refusal     TEXT CHECK ((refusal IS NULL) = (state <> 3)),
    body        JSONB NOT NULL
);
CREATE INDEX tx_commands_open ON txm.tx_commands (signer, command_id) WHERE state = 1;

-- The sum of first payments by signer, asset and minute. `asset` is '' for the chain's own coin.
CREATE TABLE txm.outflow_minutes (
    signer TEXT NOT NULL,
    asset  TEXT NOT NULL,
    minute TIMESTAMPTZ NOT NULL,
    units  NUMERIC(78) NOT NULL,
    PRIMARY KEY (signer, asset, minute)
) WITH (fillfactor = 50);

-- The deeds of people and of programs about signers and rows.
CREATE TABLE txm.audit (
    audit_id BIGSERIAL PRIMARY KEY,
    at       TIMESTAMPTZ NOT NULL,
    tx_id    UUID,
    signer   TEXT,
    actor    TEXT NOT NULL,
    what     TEXT NOT NULL,
    reason   TEXT NOT NULL
);

-- The hash of the functions that stand in this schema.
CREATE TABLE txm.functions (
    one  BOOLEAN PRIMARY KEY CHECK (one),
    hash TEXT NOT NULL
);

-- The result of one request of a create.
CREATE TYPE txm.made AS (place BIGINT, outcome TEXT, fields TEXT[], id UUID);
