-- Transfers one at a time: accept, step, refuse, defer.
--
-- No function here decides which state comes next. The caller passes the states of its state
-- machine: p_path first, then p_success or p_refused by the outcome of the Funding operation p_op.
-- The guards refuse every state that the table of states could never reach.

-- Accepts a transfer: its row, and its Funding operation if p_op is given, in one commit. If the
-- req_id, or the cid of this user, is known, nothing is inserted and the known transfer is
-- returned.
CREATE FUNCTION transfer_accept(
    p_req_id VARCHAR, p_cid VARCHAR, p_fingerprint VARCHAR, p_user BIGINT, p_asset INTEGER,
    p_amount NUMERIC, p_type SMALLINT, p_order BIGINT, p_path SMALLINT[], p_op SMALLINT,
    p_success SMALLINT[], p_refused SMALLINT[], p_actor TEXT)
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
        RAISE EXCEPTION 'transfer % is to pass no state', p_req_id
            USING ERRCODE = 'not_null_violation';
    END IF;
    IF p_op IS NOT NULL THEN
        v_code := funding_operate(p_req_id, p_op, p_user, p_asset, p_amount);
        v_states := v_states || CASE WHEN v_code IS NULL THEN p_success ELSE p_refused END;
        -- The same check as in transfers_guard, which sees updates only.
        IF p_path[cardinality(p_path)] <> v_states[cardinality(v_states)]
           AND NOT transfer_state_admits(p_path[cardinality(p_path)],
                                         v_states[cardinality(v_states)]) THEN
            RAISE EXCEPTION 'transfer % cannot go from state % to %', p_req_id,
                p_path[cardinality(p_path)], v_states[cardinality(v_states)]
                USING ERRCODE = 'UB003';
        END IF;
    END IF;
    INSERT INTO transfers_tb (order_number, req_id, cid, fingerprint, user_id, asset_id, amount,
                              transfer_type, source_type, state, error_code)
    VALUES (p_order, p_req_id, p_cid, p_fingerprint, p_user, p_asset, p_amount, p_type, p_type,
            v_states[cardinality(v_states)], v_code)
    RETURNING * INTO v_row;
    INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
    VALUES (p_req_id, v_states, 0, p_actor, v_code);
    RETURN v_row;
END
$$;

-- One commit of a transfer: compare-and-set from p_from through the states of p_path. If p_op is
-- given, then also the Funding operation and the states of its outcome. p_code is UBSCore's
-- refusal, if it refused. Returns the transfer as it is now. If another call has moved it before,
-- this one does not.
CREATE FUNCTION transfer_step(
    p_req_id VARCHAR, p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[],
    p_refused SMALLINT[], p_code VARCHAR, p_log_sequence BIGINT, p_attempt INTEGER, p_actor TEXT,
    p_reason TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_states SMALLINT[] := p_path;
    v_code   VARCHAR;
BEGIN
    IF p_op IS NOT NULL THEN
        -- Locked: of several concurrent steps one operates, and the others find the transfer moved.
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
       SET state = v_states[cardinality(v_states)],
           error_code = COALESCE(error_code, p_code, v_code),
           log_sequence = COALESCE(p_log_sequence, log_sequence), retry_count = 0,
           next_retry_at = NULL, updated_at = clock_timestamp()
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

-- The same as transfer_step, for an operator: Funding refuses the operation if it is not decided.
CREATE FUNCTION transfer_refuse(
    p_req_id VARCHAR, p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[],
    p_refused SMALLINT[], p_code VARCHAR, p_log_sequence BIGINT, p_attempt INTEGER, p_actor TEXT,
    p_reason TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row transfers_tb%ROWTYPE;
BEGIN
    SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id FOR UPDATE;
    -- If another call has moved it, there is nothing to refuse here.
    IF FOUND AND v_row.state = p_from THEN
        PERFORM funding_refuse(p_req_id, p_op, v_row.user_id, v_row.asset_id, v_row.amount);
    END IF;
    SELECT * INTO v_row
      FROM transfer_step(p_req_id, p_from, p_path, p_op, p_success, p_refused, p_code,
                         p_log_sequence, p_attempt, p_actor, p_reason);
    RETURN v_row;
END
$$;

-- Notes that a transfer will be tried again, and when. Moves no state.
CREATE FUNCTION transfer_defer(
    p_req_id VARCHAR, p_state SMALLINT, p_retry_count INTEGER, p_delay_ms BIGINT)
RETURNS VOID LANGUAGE sql AS $$
    UPDATE transfers_tb
       SET retry_count = p_retry_count,
           next_retry_at = clock_timestamp() + make_interval(secs => p_delay_ms / 1000.0)
     WHERE req_id = p_req_id AND state = p_state
$$;
