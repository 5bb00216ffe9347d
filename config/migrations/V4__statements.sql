-- ubscore, version 4: the same deeds in fewer statements.
--
-- PostgreSQL parses and plans the body of a function in SQL at every call, and the condition of a trigger at every
-- statement that may fire it. What every transfer passes is PL/pgSQL therefore, whose plans are kept. It writes each row
-- once: it looks, decides, and then inserts. Where somebody else has inserted meanwhile, a unique key refuses the whole
-- transaction, and the next try finds what that one has decided.

CREATE OR REPLACE FUNCTION transfers_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> NEW.state AND NOT transfer_state_admits(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'transfer % cannot go from state % to %', OLD.req_id, OLD.state, NEW.state
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

DROP TRIGGER transfers_guard ON transfers_tb;
CREATE TRIGGER transfers_guard BEFORE UPDATE OF state ON transfers_tb
    FOR EACH ROW EXECUTE FUNCTION transfers_guard();

-- Every row is updated once or a few times, soon: its new version finds room on its page.
ALTER TABLE transfers_tb SET (fillfactor = 60);

-- Puts an amount into Funding and returns the balance afterwards, whatever the account's status. The row of a new asset is
-- made.
CREATE OR REPLACE FUNCTION funding_credit(p_user BIGINT, p_asset INTEGER, p_amount NUMERIC) RETURNS NUMERIC
LANGUAGE plpgsql AS $$
DECLARE
    v_after NUMERIC;
BEGIN
    INSERT INTO balances_tb AS b (user_id, asset_id, account_type, available)
    VALUES (p_user, p_asset, 1, p_amount)
    ON CONFLICT (user_id, asset_id, account_type)
    DO UPDATE SET available = b.available + EXCLUDED.available, version = b.version + 1
    RETURNING available INTO v_after;
    RETURN v_after;
END
$$;

CREATE OR REPLACE FUNCTION funding_debit(p_user BIGINT, p_asset INTEGER, p_amount NUMERIC) RETURNS NUMERIC
LANGUAGE plpgsql AS $$
DECLARE
    v_after NUMERIC;
BEGIN
    UPDATE balances_tb SET available = available - p_amount, version = version + 1
     WHERE user_id = p_user AND asset_id = p_asset AND account_type = 1 AND available >= p_amount
    RETURNING available INTO v_after;
    RETURN v_after;
END
$$;

-- See version 1.
CREATE OR REPLACE FUNCTION funding_operate(p_req_id VARCHAR, p_op SMALLINT, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC)
RETURNS VARCHAR LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfer_operations%ROWTYPE;
    v_status SMALLINT;
    v_code   VARCHAR;
    v_after  NUMERIC;
BEGIN
    SELECT * INTO v_row FROM transfer_operations WHERE req_id = p_req_id AND op = p_op;
    IF FOUND THEN
        IF (v_row.user_id, v_row.asset_id, v_row.amount) IS DISTINCT FROM (p_user, p_asset, p_amount) THEN
            RAISE EXCEPTION 'operation % of % repeated with another user, asset or amount', p_op, p_req_id
                USING ERRCODE = 'UB002';
        END IF;
        RETURN v_row.code;
    END IF;
    IF p_op = 3 THEN
        SELECT * INTO v_row FROM transfer_operations WHERE req_id = p_req_id AND op = 1;
        IF NOT FOUND OR v_row.outcome <> 1
           OR (v_row.user_id, v_row.asset_id, v_row.amount) IS DISTINCT FROM (p_user, p_asset, p_amount) THEN
            RAISE EXCEPTION 'refund of %, which was not withdrawn', p_req_id USING ERRCODE = 'UB002';
        END IF;
        -- Whatever the account's status: a refund is never refused.
        v_after := funding_credit(p_user, p_asset, p_amount);
    ELSE
        SELECT status INTO v_status FROM accounts_tb WHERE user_id = p_user AND account_type = 1;
        v_code := CASE WHEN v_status = 1 THEN NULL
                       WHEN v_status IS NULL AND p_op = 1 THEN 'SOURCE_ACCOUNT_NOT_FOUND'
                       WHEN v_status IS NULL THEN 'TARGET_ACCOUNT_NOT_FOUND'
                       WHEN v_status = 2 AND p_op = 1 THEN 'ACCOUNT_FROZEN'
                       WHEN v_status = 3 THEN 'ACCOUNT_DISABLED' END;
        IF v_code IS NULL AND p_op = 2 THEN
            v_after := funding_credit(p_user, p_asset, p_amount);
        ELSIF v_code IS NULL THEN
            v_after := funding_debit(p_user, p_asset, p_amount);
            IF v_after IS NULL THEN
                v_code := 'INSUFFICIENT_BALANCE';
            END IF;
        END IF;
    END IF;
    INSERT INTO transfer_operations (req_id, op, outcome, code, user_id, asset_id, amount, balance_after)
    VALUES (p_req_id, p_op, CASE WHEN v_code IS NULL THEN 1 ELSE 2 END, v_code, p_user, p_asset, p_amount, v_after);
    RETURN v_code;
END
$$;

-- See version 1.
CREATE OR REPLACE FUNCTION transfer_step(
    p_req_id VARCHAR, p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[],
    p_code VARCHAR, p_log_sequence BIGINT, p_attempt INTEGER, p_actor TEXT, p_reason TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_states SMALLINT[] := p_path;
    v_code   VARCHAR;
BEGIN
    IF p_op IS NOT NULL THEN
        -- Locked: of several who step it at once, one operates, and the others find it moved.
        SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no transfer %', p_req_id USING ERRCODE = 'UB002';
        END IF;
        IF v_row.state <> p_from THEN
            RETURN v_row;
        END IF;
        v_code := funding_operate(p_req_id, p_op, v_row.user_id, v_row.asset_id, v_row.amount);
        v_states := v_states || CASE WHEN v_code IS NULL THEN p_success ELSE p_refused END;
    END IF;
    UPDATE transfers_tb
       SET state = v_states[cardinality(v_states)], error_code = COALESCE(error_code, p_code, v_code),
           log_sequence = COALESCE(p_log_sequence, log_sequence), retry_count = 0, next_retry_at = NULL,
           updated_at = clock_timestamp()
     WHERE req_id = p_req_id AND state = p_from
    RETURNING * INTO v_row;
    IF NOT FOUND THEN
        SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no transfer %', p_req_id USING ERRCODE = 'UB002';
        END IF;
        RETURN v_row;
    END IF;
    INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
    VALUES (p_req_id, v_states, p_attempt, p_actor, COALESCE(p_code, v_code, p_reason));
    RETURN v_row;
END
$$;

-- See version 1.
CREATE OR REPLACE FUNCTION transfer_accept(
    p_req_id VARCHAR, p_cid VARCHAR, p_fingerprint VARCHAR, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC,
    p_type SMALLINT, p_order BIGINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[],
    p_actor TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_states SMALLINT[] := p_path;
    v_code   VARCHAR;
BEGIN
    IF p_cid IS NULL THEN
        SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id;
    ELSE
        SELECT * INTO v_row FROM transfers_tb WHERE user_id = p_user AND cid = p_cid;
    END IF;
    IF FOUND THEN
        RETURN v_row;
    END IF;
    IF cardinality(p_path) = 0 THEN
        RAISE EXCEPTION 'transfer % is to pass no state', p_req_id USING ERRCODE = 'not_null_violation';
    END IF;
    IF p_op IS NOT NULL THEN
        v_code := funding_operate(p_req_id, p_op, p_user, p_asset, p_amount);
        v_states := v_states || CASE WHEN v_code IS NULL THEN p_success ELSE p_refused END;
        -- As transfers_guard would, had the row been there before.
        IF p_path[cardinality(p_path)] <> v_states[cardinality(v_states)]
           AND NOT transfer_state_admits(p_path[cardinality(p_path)], v_states[cardinality(v_states)]) THEN
            RAISE EXCEPTION 'transfer % cannot go from state % to %', p_req_id, p_path[cardinality(p_path)],
                v_states[cardinality(v_states)] USING ERRCODE = 'UB003';
        END IF;
    END IF;
    INSERT INTO transfers_tb (order_number, req_id, cid, fingerprint, user_id, asset_id, amount, transfer_type,
                              source_type, state, error_code)
    VALUES (p_order, p_req_id, p_cid, p_fingerprint, p_user, p_asset, p_amount, p_type, p_type,
            v_states[cardinality(v_states)], v_code)
    RETURNING * INTO v_row;
    INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
    VALUES (p_req_id, v_states, 0, p_actor, v_code);
    RETURN v_row;
END
$$;
