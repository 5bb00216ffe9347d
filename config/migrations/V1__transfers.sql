-- ubscore, version 1. Numbered, run at start under an advisory lock, never edited once released.
--
-- Amounts are decimal values of the asset (100.5), with at most 8 decimals. Nothing here decides where a transfer
-- may go next: the caller passes the states of its state machine, and transfers_guard refuses what that table could
-- never reach.

CREATE TABLE assets_tb (
    asset_id                  INTEGER PRIMARY KEY CHECK (asset_id > 0),
    symbol                    VARCHAR(16) NOT NULL UNIQUE CHECK (octet_length(symbol) BETWEEN 1 AND 16),
    precision                 SMALLINT NOT NULL CHECK (precision BETWEEN 0 AND 8),
    status                    SMALLINT NOT NULL DEFAULT 1 CHECK (status IN (1, 2)),   -- 1 active, 2 suspended
    internal_transfer_enabled BOOLEAN NOT NULL DEFAULT TRUE,
    min_transfer_amount       DECIMAL(30,8) NOT NULL CHECK (min_transfer_amount > 0),
    max_transfer_amount       DECIMAL(30,8) NOT NULL,
    CHECK (max_transfer_amount >= min_transfer_amount)
);

CREATE TABLE accounts_tb (
    user_id      BIGINT NOT NULL CHECK (user_id > 0),
    account_type SMALLINT NOT NULL CHECK (account_type = 1),          -- 1 Funding; Spot lives in UBSCore
    status       SMALLINT NOT NULL DEFAULT 1 CHECK (status IN (1, 2, 3)),   -- 1 active, 2 frozen, 3 disabled
    PRIMARY KEY (user_id, account_type)
);

CREATE TABLE balances_tb (
    user_id      BIGINT NOT NULL,
    asset_id     INTEGER NOT NULL,
    account_type SMALLINT NOT NULL CHECK (account_type = 1),
    available    DECIMAL(38,8) NOT NULL CHECK (available >= 0),
    frozen       DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (frozen >= 0),
    version      BIGINT NOT NULL DEFAULT 1,
    PRIMARY KEY (user_id, asset_id, account_type)
) WITH (fillfactor = 80);

-- No index names `state`, not even in a predicate: it would make every state change a non-HOT update.
CREATE TABLE transfers_tb (
    transfer_id   BIGSERIAL,
    order_number  BIGINT PRIMARY KEY,                 -- the accept's position: incarnation << 40 | counter
    req_id        VARCHAR(26) NOT NULL UNIQUE,
    cid           VARCHAR(64),
    fingerprint   VARCHAR(128) NOT NULL,              -- from:to:asset:amount, what a repeat of the cid must equal
    user_id       BIGINT NOT NULL,
    asset_id      INTEGER NOT NULL,
    amount        DECIMAL(30,8) NOT NULL CHECK (amount > 0),
    transfer_type SMALLINT NOT NULL CHECK (transfer_type IN (1, 2)),     -- 1 Funding->Spot, 2 Spot->Funding
    source_type   SMALLINT NOT NULL CHECK (source_type = transfer_type), -- 1 Funding, 2 Trading
    state         SMALLINT NOT NULL CHECK (state IN (0, 10, 20, 30, 40, -10, -20, -30)),
    error_code    VARCHAR(40),
    error_message TEXT,                               -- filled by operators; the code's own sentence is not stored
    retry_count   INTEGER NOT NULL DEFAULT 0,
    next_retry_at TIMESTAMPTZ,
    log_sequence  BIGINT,                             -- of UBSCore's last outcome for this transfer
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (user_id, cid)
) WITH (fillfactor = 80);

CREATE INDEX transfers_by_user ON transfers_tb (user_id, order_number);

CREATE TABLE transfer_history (
    req_id  VARCHAR(26) NOT NULL,
    states  SMALLINT[] NOT NULL,                      -- in the order passed, one row per commit
    at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    attempt INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    reason  TEXT
);

CREATE INDEX transfer_history_by_transfer ON transfer_history (req_id);

-- The idempotency record of a Funding operation and, for a success, its ledger entry.
CREATE TABLE transfer_operations (
    req_id        VARCHAR(26) NOT NULL,
    op            SMALLINT NOT NULL CHECK (op IN (1, 2, 3)),      -- 1 withdraw, 2 deposit, 3 refund
    outcome       SMALLINT NOT NULL CHECK (outcome IN (1, 2)),    -- 1 success, 2 refused
    code          VARCHAR(40) CHECK ((code IS NULL) = (outcome = 1)),
    user_id       BIGINT NOT NULL,
    asset_id      INTEGER NOT NULL,
    amount        DECIMAL(30,8) NOT NULL,
    balance_after DECIMAL(38,8),
    at            TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (req_id, op)
) WITH (fillfactor = 80);

-- The same for money that enters or leaves Funding from outside, with a key space of its own.
CREATE TABLE external_operations (
    idem_key      VARCHAR(64) PRIMARY KEY,
    op            SMALLINT NOT NULL CHECK (op IN (4, 5)),         -- 4 deposit, 5 withdrawal
    outcome       SMALLINT NOT NULL CHECK (outcome IN (1, 2)),
    code          VARCHAR(40) CHECK ((code IS NULL) = (outcome = 1)),
    user_id       BIGINT NOT NULL,
    asset_id      INTEGER NOT NULL,
    amount        DECIMAL(30,8) NOT NULL,
    balance_after DECIMAL(38,8),
    at            TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);

-- One row: which log this database belongs to, and which process may write. Batches lock it, never update it.
CREATE TABLE engine_state (
    singleton    BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    log_identity VARCHAR(32),                         -- 128 bits in hexadecimal, NULL until a log is bound
    incarnation  BIGINT NOT NULL DEFAULT 0,           -- increases with every start
    halted       BOOLEAN NOT NULL DEFAULT FALSE,
    halt_reason  TEXT,
    watermark    BIGINT NOT NULL DEFAULT 0            -- order numbers below it may have left UBSCore's outcome map
);

INSERT INTO engine_state DEFAULT VALUES;

CREATE TABLE shard_lease (
    shard            INTEGER PRIMARY KEY,
    owner            TEXT NOT NULL,
    epoch            BIGINT NOT NULL,
    expires_at       TIMESTAMPTZ NOT NULL,
    durable_sequence BIGINT NOT NULL DEFAULT 0,       -- the highest log sequence its owner has seen durable
    flight           BIGINT NOT NULL DEFAULT 0        -- the last transaction of this epoch, so that none overtakes another
) WITH (fillfactor = 50);

CREATE TABLE admin_audit (
    id      BIGSERIAL PRIMARY KEY,
    at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL,
    reason  TEXT NOT NULL
);

-- Whether a transfer may be found in state `new` some commits after it was found in `old`: the transitive closure of
-- the state machine's table. A test compares it with that table.
CREATE FUNCTION transfer_state_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_old
        WHEN 0 THEN p_new IN (10, 20, 30, 40, -10, -20, -30)
        WHEN 10 THEN p_new IN (20, 30, 40, -10, -20, -30)
        WHEN 20 THEN p_new IN (30, 40, -20, -30)
        WHEN 30 THEN p_new IN (40, -20, -30)
        WHEN -20 THEN p_new = -30
        ELSE FALSE
    END
$$;

CREATE FUNCTION transfers_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'transfer % cannot go from state % to %', OLD.req_id, OLD.state, NEW.state
        USING ERRCODE = 'UB003';
END
$$;

CREATE TRIGGER transfers_guard BEFORE UPDATE OF state ON transfers_tb
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND NOT transfer_state_admits(OLD.state, NEW.state))
    EXECUTE FUNCTION transfers_guard();

-- The first statement of every writing transaction. Locks the incarnation, so that a start waits for us or we for it,
-- and writes what we have seen durable into our own lease. A superseded process gets UB001 and commits nothing. Nor does
-- a flight that was given up and arrives after a later one of the same owner: it gets UB004.
CREATE FUNCTION fence(p_incarnation BIGINT, p_shard INTEGER, p_flight BIGINT, p_durable BIGINT, p_lease_ms INTEGER)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_epoch BIGINT;
BEGIN
    PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
    UPDATE shard_lease
       SET durable_sequence = GREATEST(durable_sequence, p_durable), flight = p_flight,
           expires_at = clock_timestamp() + make_interval(secs => p_lease_ms / 1000.0)
     WHERE shard = p_shard AND epoch = p_incarnation AND flight < p_flight;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT epoch INTO v_epoch FROM shard_lease WHERE shard = p_shard;
    IF v_epoch IS DISTINCT FROM p_incarnation THEN
        RAISE EXCEPTION 'shard % is leased to another', p_shard USING ERRCODE = 'UB001';
    END IF;
    RAISE EXCEPTION 'flight % of shard % comes too late', p_flight, p_shard USING ERRCODE = 'UB004';
END
$$;

-- Puts an amount into Funding and returns the balance afterwards. The row of a new asset is made.
CREATE FUNCTION funding_credit(p_user BIGINT, p_asset INTEGER, p_amount NUMERIC) RETURNS NUMERIC
LANGUAGE sql AS $$
    INSERT INTO balances_tb AS b (user_id, asset_id, account_type, available)
    VALUES (p_user, p_asset, 1, p_amount)
    ON CONFLICT (user_id, asset_id, account_type)
    DO UPDATE SET available = b.available + EXCLUDED.available, version = b.version + 1
    RETURNING available
$$;

-- Takes an amount out of Funding and returns the balance afterwards, NULL where there is not enough.
CREATE FUNCTION funding_debit(p_user BIGINT, p_asset INTEGER, p_amount NUMERIC) RETURNS NUMERIC
LANGUAGE sql AS $$
    UPDATE balances_tb SET available = available - p_amount, version = version + 1
     WHERE user_id = p_user AND asset_id = p_asset AND account_type = 1 AND available >= p_amount
    RETURNING available
$$;

-- One Funding operation of a transfer: decided once, and every repeat is told the decision. Returns NULL for a success
-- and the code of a refusal. A repeat with another user, asset or amount, or a refund of what was never withdrawn, is
-- UB002 and changes nothing.
CREATE FUNCTION funding_operate(p_req_id VARCHAR, p_op SMALLINT, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC)
RETURNS VARCHAR LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfer_operations%ROWTYPE;
    v_status SMALLINT;
    v_code   VARCHAR;
    v_after  NUMERIC;
BEGIN
    -- The row first: a concurrent call with this key waits here and then reads the truth. It is born a success and
    -- corrected below.
    INSERT INTO transfer_operations (req_id, op, outcome, user_id, asset_id, amount)
    VALUES (p_req_id, p_op, 1, p_user, p_asset, p_amount) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO v_row FROM transfer_operations WHERE req_id = p_req_id AND op = p_op;
        IF (v_row.user_id, v_row.asset_id, v_row.amount) IS DISTINCT FROM (p_user, p_asset, p_amount) THEN
            RAISE EXCEPTION 'operation % of % repeated with another user, asset or amount', p_op, p_req_id
                USING ERRCODE = 'UB002';
        END IF;
        RETURN v_row.code;
    END IF;
    SELECT status INTO v_status FROM accounts_tb WHERE user_id = p_user AND account_type = 1;
    IF p_op = 1 THEN
        v_code := CASE WHEN v_status IS NULL THEN 'SOURCE_ACCOUNT_NOT_FOUND'
                       WHEN v_status = 2 THEN 'ACCOUNT_FROZEN'
                       WHEN v_status = 3 THEN 'ACCOUNT_DISABLED' END;
        IF v_code IS NULL THEN
            v_after := funding_debit(p_user, p_asset, p_amount);
            IF v_after IS NULL THEN
                v_code := 'INSUFFICIENT_BALANCE';
            END IF;
        END IF;
    ELSIF p_op = 2 THEN
        v_code := CASE WHEN v_status IS NULL THEN 'TARGET_ACCOUNT_NOT_FOUND'
                       WHEN v_status = 3 THEN 'ACCOUNT_DISABLED' END;
        IF v_code IS NULL THEN
            v_after := funding_credit(p_user, p_asset, p_amount);
        END IF;
    ELSE
        SELECT * INTO v_row FROM transfer_operations WHERE req_id = p_req_id AND op = 1;
        IF NOT FOUND OR v_row.outcome <> 1
           OR (v_row.user_id, v_row.asset_id, v_row.amount) IS DISTINCT FROM (p_user, p_asset, p_amount) THEN
            RAISE EXCEPTION 'refund of %, which was not withdrawn', p_req_id USING ERRCODE = 'UB002';
        END IF;
        -- Whatever the account's status: a refund is never refused.
        v_after := funding_credit(p_user, p_asset, p_amount);
    END IF;
    UPDATE transfer_operations
       SET outcome = CASE WHEN v_code IS NULL THEN 1 ELSE 2 END, code = v_code, balance_after = v_after
     WHERE req_id = p_req_id AND op = p_op;
    RETURN v_code;
END
$$;

-- One commit's worth of a transfer: compare-and-set from p_from through the states of p_path, then, where p_op is
-- given, the Funding operation and the states of its outcome. p_code is why UBSCore refused, where it did. Returns the
-- transfer as it stands now; where somebody has moved it before, this call does not.
CREATE FUNCTION transfer_step(
    p_req_id VARCHAR, p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[],
    p_code VARCHAR, p_log_sequence BIGINT, p_attempt INTEGER, p_actor TEXT, p_reason TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_states SMALLINT[] := p_path;
    v_code   VARCHAR;
BEGIN
    SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no transfer %', p_req_id USING ERRCODE = 'UB002';
    END IF;
    IF v_row.state <> p_from THEN
        RETURN v_row;
    END IF;
    IF p_op IS NOT NULL THEN
        v_code := funding_operate(p_req_id, p_op, v_row.user_id, v_row.asset_id, v_row.amount);
        v_states := v_states || CASE WHEN v_code IS NULL THEN p_success ELSE p_refused END;
    END IF;
    UPDATE transfers_tb
       SET state = v_states[cardinality(v_states)], error_code = COALESCE(error_code, p_code, v_code),
           log_sequence = COALESCE(p_log_sequence, log_sequence), retry_count = 0, next_retry_at = NULL,
           updated_at = clock_timestamp()
     WHERE req_id = p_req_id
    RETURNING * INTO v_row;
    INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
    VALUES (p_req_id, v_states, p_attempt, p_actor, COALESCE(p_code, v_code, p_reason));
    RETURN v_row;
END
$$;

-- Accepts a transfer: its row in the last state of p_path, and then, where p_op is given, what transfer_step does.
-- A req_id or a user's cid that is there already inserts nothing and is answered with what is there.
CREATE FUNCTION transfer_accept(
    p_req_id VARCHAR, p_cid VARCHAR, p_fingerprint VARCHAR, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC,
    p_type SMALLINT, p_order BIGINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[],
    p_actor TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_states SMALLINT[] := p_path;
    v_code   VARCHAR;
BEGIN
    INSERT INTO transfers_tb (order_number, req_id, cid, fingerprint, user_id, asset_id, amount, transfer_type,
                              source_type, state)
    VALUES (p_order, p_req_id, p_cid, p_fingerprint, p_user, p_asset, p_amount, p_type, p_type,
            p_path[cardinality(p_path)])
    ON CONFLICT DO NOTHING RETURNING * INTO v_row;
    IF NOT FOUND THEN
        SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id;
        IF NOT FOUND THEN
            SELECT * INTO STRICT v_row FROM transfers_tb WHERE user_id = p_user AND cid = p_cid;
        END IF;
        RETURN v_row;
    END IF;
    IF p_op IS NOT NULL THEN
        v_code := funding_operate(p_req_id, p_op, p_user, p_asset, p_amount);
        v_states := v_states || CASE WHEN v_code IS NULL THEN p_success ELSE p_refused END;
        UPDATE transfers_tb SET state = v_states[cardinality(v_states)], error_code = v_code WHERE req_id = p_req_id
        RETURNING * INTO v_row;
    END IF;
    INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
    VALUES (p_req_id, v_states, 0, p_actor, v_code);
    RETURN v_row;
END
$$;

-- Writes down that a transfer will be tried again, and when. Moves no state.
CREATE FUNCTION transfer_defer(p_req_id VARCHAR, p_state SMALLINT, p_retry_count INTEGER, p_delay_ms BIGINT)
RETURNS VOID LANGUAGE sql AS $$
    UPDATE transfers_tb
       SET retry_count = p_retry_count,
           next_retry_at = clock_timestamp() + make_interval(secs => p_delay_ms / 1000.0)
     WHERE req_id = p_req_id AND state = p_state
$$;

-- Money that enters (4) or leaves (5) Funding: decided once per idem_key. The first deposit makes the account. A repeat
-- with another body is answered with o_conflict and changes nothing.
CREATE FUNCTION external_operate(
    p_idem_key VARCHAR, p_op SMALLINT, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC, p_actor TEXT,
    OUT o_code VARCHAR, OUT o_after TEXT, OUT o_conflict BOOLEAN)
LANGUAGE plpgsql AS $$
DECLARE
    v_row    external_operations%ROWTYPE;
    v_status SMALLINT;
    v_after  NUMERIC;
BEGIN
    o_conflict := FALSE;
    INSERT INTO external_operations (idem_key, op, outcome, user_id, asset_id, amount)
    VALUES (p_idem_key, p_op, 1, p_user, p_asset, p_amount) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO v_row FROM external_operations WHERE idem_key = p_idem_key;
        o_conflict := (v_row.op, v_row.user_id, v_row.asset_id, v_row.amount)
                      IS DISTINCT FROM (p_op, p_user, p_asset, p_amount);
        o_code := v_row.code;
        o_after := v_row.balance_after::text;
        RETURN;
    END IF;
    IF p_op = 4 THEN
        INSERT INTO accounts_tb (user_id, account_type) VALUES (p_user, 1) ON CONFLICT DO NOTHING;
    END IF;
    SELECT status INTO v_status FROM accounts_tb WHERE user_id = p_user AND account_type = 1;
    o_code := CASE WHEN v_status IS NULL THEN 'SOURCE_ACCOUNT_NOT_FOUND'
                   WHEN v_status = 3 THEN 'ACCOUNT_DISABLED'
                   WHEN v_status = 2 AND p_op = 5 THEN 'ACCOUNT_FROZEN' END;
    IF o_code IS NULL AND p_op = 4 THEN
        v_after := funding_credit(p_user, p_asset, p_amount);
    ELSIF o_code IS NULL THEN
        v_after := funding_debit(p_user, p_asset, p_amount);
        IF v_after IS NULL THEN
            o_code := 'INSUFFICIENT_BALANCE';
        END IF;
    END IF;
    o_after := v_after::text;
    UPDATE external_operations
       SET outcome = CASE WHEN o_code IS NULL THEN 1 ELSE 2 END, code = o_code, balance_after = v_after
     WHERE idem_key = p_idem_key;
    INSERT INTO admin_audit (actor, action, subject, detail, reason)
    VALUES (p_actor, CASE p_op WHEN 4 THEN 'deposit' ELSE 'withdrawal' END, p_user::text,
            format('asset %s amount %s idem_key %s outcome %s', p_asset, p_amount, p_idem_key,
                   COALESCE(o_code, 'SUCCESS')), 'external');
END
$$;

-- Sets a Funding account's status, making the account where it is absent.
CREATE FUNCTION account_set_status(p_user BIGINT, p_status SMALLINT, p_actor TEXT, p_reason TEXT) RETURNS VOID
LANGUAGE sql AS $$
    INSERT INTO accounts_tb (user_id, account_type, status) VALUES (p_user, 1, p_status)
    ON CONFLICT (user_id, account_type) DO UPDATE SET status = EXCLUDED.status;
    INSERT INTO admin_audit (actor, action, subject, detail, reason)
    VALUES (p_actor, 'account status', p_user || ' FUNDING', p_status::text, p_reason);
$$;
