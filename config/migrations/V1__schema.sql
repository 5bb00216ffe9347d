-- The schema of ubscore: tables, indexes, sequences, constraints and the first rows. Functions and
-- triggers stand in src/postgres/sql/, and every start applies them behind the migrations.
--
-- Migrations are numbered, run at a start under an advisory lock, and are never edited once they
-- are released.
--
-- Amounts and balances are smallest units of the asset: 100.5 of an asset with 8 decimals is
-- 10050000000. A ULID is a UUID of the same 128 bits. A code is its number in domain/src/code.rs.
-- The views of src/postgres/sql/people.sql show decimals, ULIDs and names instead.
--
-- Columns of fixed width come first, the widest before the others, so that no row has padding.


-- ## The log and the writer

-- One row: the log of this database, and the process that may write.
CREATE TABLE engine_state (
    singleton          BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    log_identity       VARCHAR(32),              -- 128 bits in hexadecimal; NULL: no log is bound
    incarnation        BIGINT NOT NULL DEFAULT 0,    -- increases with every start
    halted             BOOLEAN NOT NULL DEFAULT FALSE,
    halt_reason        TEXT,
    watermark          BIGINT NOT NULL DEFAULT 0,    -- see watermark_totals
    -- Set by a first start with --dev. Development money is made only where it is set.
    development        BOOLEAN NOT NULL DEFAULT FALSE,
    -- Set before the first record of a venue in the log. Spot can no longer be rebuilt from here.
    posted             BOOLEAN NOT NULL DEFAULT FALSE,
    functions_hash     VARCHAR(16)               -- of the applied functions and triggers
);

INSERT INTO engine_state DEFAULT VALUES;

-- One row for each flight: a commit of one worker. The flights of a shard are numbered without
-- gaps, so two writers meet at the same number, and one of them gets a unique violation. Rows are
-- deleted from the low end only, and never the last one.
CREATE TABLE journal_tb (
    flight      BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    attempt     BIGINT NOT NULL,    -- no two flights of an incarnation share it; 0: its start
    at          TIMESTAMPTZ NOT NULL,
    durable     BIGINT NOT NULL,    -- the highest log sequence that the shard has seen durable
    -- When the flight was put together, each transfer of the shard that was under way, or came
    -- later, had this order number or a higher one.
    open_from   BIGINT NOT NULL,
    -- The id of its first event. Without an event: the last one before it in the shard, plus 1.
    event_first BIGINT NOT NULL,
    bytes       BIGINT NOT NULL,    -- of all rows of the shard before this one: see journal_behind
    shard       INTEGER NOT NULL,
    event_count INTEGER NOT NULL,
    entries     BYTEA NOT NULL,     -- its changes, see src/postgres/flight/entries.rs
    PRIMARY KEY (shard, flight)
) WITH (
    vacuum_truncate = off,
    -- Each ordinary vacuum freezes the rows that it visits. So a vacuum against wraparound, which
    -- does not give way to a start, is rare and short.
    autovacuum_freeze_min_age = 0,
    autovacuum_freeze_table_age = 0,
    autovacuum_multixact_freeze_min_age = 0,
    autovacuum_multixact_freeze_table_age = 0
);

-- The rows of tools. Their transfers may be older than all that were under way.
CREATE INDEX journal_of_tools ON journal_tb (event_first) WHERE attempt >= 4611686018427387904;

-- The last row of each shard, found by the key.
CREATE VIEW journal_last AS
    WITH RECURSIVE shards AS (
        SELECT min(shard) AS shard FROM journal_tb
        UNION ALL
        SELECT (SELECT min(j.shard) FROM journal_tb j WHERE j.shard > shards.shard)
          FROM shards WHERE shard IS NOT NULL
    )
    SELECT last.* FROM shards CROSS JOIN LATERAL (
        SELECT * FROM journal_tb j WHERE j.shard = shards.shard
         ORDER BY flight DESC LIMIT 1) AS last;


-- ## Assets, accounts, balances

CREATE TABLE assets_tb (
    asset_id                  INTEGER PRIMARY KEY CHECK (asset_id > 0),
    symbol                    VARCHAR(16) NOT NULL UNIQUE
                              CHECK (octet_length(symbol) BETWEEN 1 AND 16),
    precision                 SMALLINT NOT NULL CHECK (precision BETWEEN 0 AND 8),
    status                    SMALLINT NOT NULL DEFAULT 1
                              CHECK (status IN (1, 2)),         -- 1 active, 2 suspended
    internal_transfer_enabled BOOLEAN NOT NULL DEFAULT TRUE,
    min_transfer_amount       BIGINT NOT NULL CHECK (min_transfer_amount > 0),
    max_transfer_amount       BIGINT NOT NULL,
    CHECK (max_transfer_amount >= min_transfer_amount)
);

-- The Funding accounts. Those of Spot are in UBSCore.
CREATE TABLE accounts_tb (
    user_id BIGINT PRIMARY KEY CHECK (user_id > 0),
    status  SMALLINT NOT NULL DEFAULT 1
            CHECK (status IN (1, 2, 3))          -- 1 active, 2 frozen, 3 disabled
);

CREATE TABLE balances_tb (
    user_id   BIGINT NOT NULL,
    version   BIGINT NOT NULL DEFAULT 1,
    asset_id  INTEGER NOT NULL,
    available NUMERIC(38,0) NOT NULL CHECK (available >= 0),
    frozen    NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (frozen >= 0),
    PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor = 80);


-- ## Transfers

-- The part of one commit in the history of a transfer.
CREATE TYPE transfer_step AS (
    event_id BIGINT,                             -- incarnation << 40 | counter
    at       TIMESTAMPTZ,
    attempt  INTEGER,                            -- tries before
    states   SMALLINT[],                         -- in the order passed
    actor    TEXT,
    reason   TEXT                                -- the code of a refusal, or an operator's reason
);

-- One row for each transfer. More than half of each page stays free for the longer version that a
-- transfer ends with.
--
-- No index names `state`, not even in a predicate: every state change would be a non-HOT update.
-- The columns that change come last, so that the log of an update leaves out the others.
CREATE TABLE transfers_tb (
    order_number  BIGINT PRIMARY KEY,            -- of the accept: incarnation << 40 | counter
    user_id       BIGINT NOT NULL,
    amount        BIGINT NOT NULL CHECK (amount > 0),
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    req_id        UUID NOT NULL UNIQUE,
    asset_id      INTEGER NOT NULL,
    direction     SMALLINT NOT NULL
                  CHECK (direction IN (1, 2)),   -- 1 Funding->Spot, 2 Spot->Funding
    cid           VARCHAR(64),

    state         SMALLINT NOT NULL CHECK (state IN (0, 10, 20, 30, 40, -10, -20, -30)),
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    log_sequence  BIGINT,                        -- of UBSCore's last outcome for this transfer
    next_retry_at TIMESTAMPTZ,
    -- The decision of Funding's operation: the withdrawal of direction 1, or the deposit of
    -- direction 2. Once it is set, it stands.
    funding_at    TIMESTAMPTZ,                   -- NULL: undecided
    -- The refund of a withdrawal. It is never refused.
    refund_at     TIMESTAMPTZ,
    attempts      INTEGER NOT NULL DEFAULT 0,
    code          SMALLINT,
    funding_code  SMALLINT,                      -- NULL: it succeeded
    error_message TEXT,                          -- from operators; a code has its own sentence
    funding_after NUMERIC(38,0),                 -- the available balance after a success
    refund_after  NUMERIC(38,0),
    history       transfer_step[] NOT NULL DEFAULT '{}',     -- in the order of commits
    UNIQUE (cid, user_id),                       -- also finds a cid without its user
    CONSTRAINT transfers_funding_check CHECK (funding_at IS NOT NULL OR funding_code IS NULL),
    CONSTRAINT transfers_refund_check CHECK (
        refund_at IS NULL
        OR direction = 1 AND funding_at IS NOT NULL AND funding_code IS NULL)
) WITH (fillfactor = 45);

CREATE INDEX transfers_by_user ON transfers_tb (user_id, order_number);

-- Rows of a flight, see src/postgres/flight/flight.sql: a transfer that goes on, a transfer that is
-- tried again later, an external operation, an account and a balance before and after, and an entry
-- for the auditors.
CREATE TYPE flight_move AS (
    order_number  BIGINT,
    before        SMALLINT,                      -- the state
    user_id       BIGINT,
    asset_id      INTEGER,
    amount        BIGINT,
    state         SMALLINT,
    code          SMALLINT,
    log_sequence  BIGINT,
    attempts      INTEGER,                       -- NULL: the tries stay
    next_retry_at TIMESTAMPTZ,
    funding_at    TIMESTAMPTZ,
    funding_code  SMALLINT,
    funding_after NUMERIC,
    refund_at     TIMESTAMPTZ,
    refund_after  NUMERIC,
    history       transfer_step[]
);

CREATE TYPE flight_deferral AS (
    req_id        UUID,
    state         SMALLINT,
    attempts      INTEGER,
    next_retry_at TIMESTAMPTZ
);

CREATE TYPE flight_external AS (
    idem_key      TEXT,
    op            SMALLINT,
    code          SMALLINT,
    user_id       BIGINT,
    asset_id      INTEGER,
    amount        BIGINT,
    balance_after NUMERIC,
    order_number  BIGINT
);

CREATE TYPE flight_account AS (
    user_id BIGINT,
    before  SMALLINT,                            -- the status; NULL: there is no row
    after   SMALLINT
);

CREATE TYPE flight_balance AS (
    user_id  BIGINT,
    asset_id INTEGER,
    before   NUMERIC,                            -- available; NULL: there is no row
    frozen   NUMERIC,
    version  BIGINT,
    after    NUMERIC                             -- NULL: it stays
);

CREATE TYPE flight_note AS (
    actor   TEXT,
    action  TEXT,
    subject TEXT,
    detail  TEXT,
    reason  TEXT
);

-- The same as one row for each decision of Funding.
CREATE VIEW transfer_decisions AS
    SELECT order_number, req_id, direction AS op,            -- 1 withdraw, 2 deposit, 3 refund
           funding_code AS code, user_id, asset_id, amount, funding_after AS balance_after,
           funding_at AS at
      FROM transfers_tb WHERE funding_at IS NOT NULL
    UNION ALL
    SELECT order_number, req_id, 3::SMALLINT, NULL, user_id, asset_id, amount, refund_after,
           refund_at
      FROM transfers_tb WHERE refund_at IS NOT NULL;


-- ## Money from outside

-- The same for money that enters or leaves Funding from outside, with a key space of its own.
CREATE TABLE external_operations (
    order_number  BIGINT NOT NULL UNIQUE,        -- of its record in UBSCore's log
    user_id       BIGINT NOT NULL,
    amount        BIGINT NOT NULL CHECK (amount > 0),
    at            TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    asset_id      INTEGER NOT NULL,
    op            SMALLINT NOT NULL CHECK (op IN (4, 5)),    -- 4 deposit, 5 withdrawal
    code          SMALLINT,                      -- NULL: it succeeded
    balance_after NUMERIC(38,0),
    idem_key      VARCHAR(64) PRIMARY KEY
) WITH (fillfactor = 80);


-- ## The watermark

-- Below the watermark everything is over: no accept and no external operation will have such an
-- order number, every transfer has been terminal for `outcomes.keep_minutes`, and UBSCore may have
-- forgotten its outcomes. This table keeps their sums for an auditor. At any moment, for each user
-- and asset, the totals and the rows at or above the watermark are everything.
--
-- The sums are cumulative. Those of Spot are the claims of terminal states.
CREATE TABLE watermark_totals (
    user_id             BIGINT NOT NULL,
    asset_id            INTEGER NOT NULL,
    funding_withdrawn   NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (funding_withdrawn >= 0),
    funding_deposited   NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (funding_deposited >= 0),
    funding_refunded    NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (funding_refunded >= 0),
    spot_withdrawn      NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (spot_withdrawn >= 0),
    spot_deposited      NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (spot_deposited >= 0),
    spot_refunded       NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (spot_refunded >= 0),
    external_deposited  NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (external_deposited >= 0),
    external_withdrawn  NUMERIC(38,0) NOT NULL DEFAULT 0 CHECK (external_withdrawn >= 0),
    PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor = 80);

-- One row: how long processes of this database have lived, by their monotonic clocks. No stepped
-- clock can lengthen this time. Time without a process is not counted, which only delays.
CREATE TABLE watermark_clock (
    singleton   BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    incarnation BIGINT NOT NULL DEFAULT 0,       -- of the last report
    before_ms   BIGINT NOT NULL DEFAULT 0,       -- lived by earlier incarnations
    lived_ms    BIGINT NOT NULL DEFAULT 0        -- lived by this one so far
);

INSERT INTO watermark_clock DEFAULT VALUES;

-- One row: where a start finds the transfers that are under way. Each has the order number
-- open_from or a higher one, or is in open_old. The watermark's task writes it; it stays true until
-- the next time, because later transfers have higher numbers.
CREATE TABLE watermark_open (
    singleton BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    open_from BIGINT NOT NULL DEFAULT 0,
    open_old  BIGINT[] NOT NULL DEFAULT '{}'     -- open for more than journal.open_flights
);

INSERT INTO watermark_open DEFAULT VALUES;

-- Order numbers below which everything was seen to be terminal, with the time by watermark_clock.
CREATE TABLE watermark_sightings (
    order_number BIGINT PRIMARY KEY,
    seen_ms      BIGINT NOT NULL
);


-- ## The audit

-- The sums of all operations in the flights that are folded.
CREATE TABLE audit_totals (
    user_id  BIGINT NOT NULL,
    asset_id INTEGER NOT NULL,
    journal  NUMERIC(38,0) NOT NULL,             -- all operations
    external NUMERIC(38,0) NOT NULL,             -- deposits less withdrawals from outside
    PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor = 80);

-- The last flight of each shard that audit_totals includes. A balance is equal to its totals and
-- the entries of all later flights. A row of the journal can be deleted up to here.
CREATE TABLE audit_folded (
    shard  INTEGER PRIMARY KEY,
    flight BIGINT NOT NULL
) WITH (fillfactor = 50);

-- One row: the progress of the audit.
CREATE TABLE audit_state (
    singleton    BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    log_sequence BIGINT NOT NULL DEFAULT 0,      -- records up to here were found in the tables
    incarnation  BIGINT NOT NULL DEFAULT 0       -- of the audit's process
);

INSERT INTO audit_state DEFAULT VALUES;


-- ## Events and webhooks

-- The events of each transfer: one for each commit that moves it.
CREATE VIEW transfer_events AS
    SELECT t.user_id, t.order_number, s.event_id, s.states, s.at
      FROM transfers_tb t CROSS JOIN LATERAL unnest(t.history) AS s;

-- Events up to event_id existed when processes of this database had lived for seen_ms, by
-- watermark_clock. The age of events, and of journal rows, is taken from it: no stepped clock
-- changes it.
CREATE TABLE events_sightings (
    event_id BIGINT PRIMARY KEY,
    seen_ms  BIGINT NOT NULL,
    coarse   BOOLEAN NOT NULL                    -- stays for the longer keep time
);

-- The last flight of each shard with its events in webhook_deliveries. Empty without an endpoint.
CREATE TABLE webhook_cursor (
    shard  INTEGER PRIMARY KEY,
    flight BIGINT NOT NULL
) WITH (fillfactor = 50);

-- One event on its way to one endpoint.
CREATE TABLE webhook_deliveries (
    event_id   BIGINT NOT NULL,
    at         TIMESTAMPTZ NOT NULL,
    req_id     UUID NOT NULL,
    next_at    TIMESTAMPTZ CHECK (next_at IS NULL OR status = 1),  -- NULL: waits for an earlier one
    ended_at   TIMESTAMPTZ CHECK ((ended_at IS NULL) = (status = 1)),
    attempts   INTEGER NOT NULL DEFAULT 0,
    status     SMALLINT NOT NULL DEFAULT 1
               CHECK (status IN (1, 2, 3)),      -- 1 to be delivered, 2 delivered, 3 dead letter
    endpoint   TEXT NOT NULL,
    states     SMALLINT[] NOT NULL,              -- in the order passed
    last_error TEXT,
    PRIMARY KEY (endpoint, event_id)
) WITH (fillfactor = 50);

-- Each index of open deliveries names them by another column, although the constraints make these
-- conditions equal. The planner takes two indexes with equal conditions for equally good while no
-- delivery is open, and would then search all open deliveries for those of one transfer.
CREATE INDEX webhook_deliveries_by_transfer ON webhook_deliveries (endpoint, req_id, event_id)
    WHERE status = 1;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint, next_at)
    WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_open ON webhook_deliveries (event_id) WHERE ended_at IS NULL;
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (event_id, endpoint) WHERE status = 3;
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (status, ended_at)
    WHERE ended_at IS NOT NULL;


-- ## Operators

CREATE TABLE admin_audit (
    id      BIGSERIAL PRIMARY KEY,
    at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL,
    reason  TEXT NOT NULL
);

-- Finds the last halt among all actions of operators.
CREATE INDEX admin_audit_halts ON admin_audit (id) WHERE action = 'halt';

-- New transfers that are refused: of a direction, of an asset, or of one direction of one asset. 0
-- stands for all.
CREATE TABLE pauses_tb (
    direction SMALLINT NOT NULL
              CHECK (direction IN (0, 1, 2)),    -- 1 Funding->Spot, 2 Spot->Funding
    asset_id  INTEGER NOT NULL CHECK (asset_id >= 0),
    at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor     TEXT NOT NULL,
    reason    TEXT NOT NULL,
    PRIMARY KEY (direction, asset_id),
    CHECK (direction <> 0 OR asset_id <> 0)
);

-- The request of one operator that a second operator must approve. A decision stands.
CREATE TABLE approvals_tb (
    approval_id    VARCHAR(26) PRIMARY KEY,
    action         TEXT NOT NULL CHECK (action IN ('resolve', 'resume', 'external', 'hold')),
    subject        TEXT NOT NULL,                -- the transfer, the halt or the idem_key
    request        TEXT NOT NULL,                -- the action to carry out, JSON
    state          SMALLINT NOT NULL DEFAULT 1
                   CHECK (state IN (1, 2, 3, 4)),    -- 1 pending, 2 approved, 3 rejected, 4 expired
    maker          BIGINT NOT NULL CHECK (maker > 0),
    reason         TEXT NOT NULL,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    expires_at     TIMESTAMPTZ NOT NULL,
    decider        BIGINT CHECK ((decider IS NULL) = (state IN (1, 4))),
    decider_reason TEXT CHECK ((decider_reason IS NULL) = (decider IS NULL)),
    decided_at     TIMESTAMPTZ CHECK ((decided_at IS NULL) = (decider IS NULL)),
    carried_out_at TIMESTAMPTZ CHECK (carried_out_at IS NULL OR state = 2),
    CHECK (state <> 2 OR decider <> maker)       -- two people
);

-- The same request of the same operator is the same approval until it is decided.
CREATE UNIQUE INDEX approvals_pending ON approvals_tb (maker, action, subject) WHERE state = 1;
CREATE INDEX approvals_by_time ON approvals_tb (created_at);
