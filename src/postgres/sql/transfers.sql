-- A step of one transfer, decided here: a repair from the log uses it while no process serves. All
-- other steps are decided in the process, and written by flights.
--
-- No function here decides which state comes next. The caller passes the states of its state
-- machine: p_path first, then p_success or p_refused by the outcome of the Funding operation p_op.
-- The guards refuse every state that the table of states could never reach.

-- One commit of a transfer: compare-and-set from p_from through the states of p_path. If p_op is
-- given, then also the Funding operation and the states of its outcome. p_code is UBSCore's
-- refusal, if it refused. Returns the transfer as it is now. If another call has moved it before,
-- this one does not.
CREATE FUNCTION transfer_step(
    p_req_id UUID, p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[],
    p_refused SMALLINT[], p_code SMALLINT, p_log_sequence BIGINT, p_attempt INTEGER, p_actor TEXT,
    p_reason TEXT, p_event_id BIGINT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_states SMALLINT[] := p_path;
    v_code   SMALLINT;
BEGIN
    IF p_op IS NOT NULL THEN
        -- Locked: of several concurrent steps one operates, and the others find the transfer moved.
        SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no transfer %', ulid_text(p_req_id) USING ERRCODE = 'UB002';
        END IF;
        IF v_row.state <> p_from THEN
            RETURN v_row;
        END IF;
        v_code := funding_operate(p_req_id, p_op);
        v_states := v_states || CASE WHEN v_code IS NULL THEN p_success ELSE p_refused END;
    END IF;
    UPDATE transfers_tb
       SET state = v_states[cardinality(v_states)],
           code = COALESCE(code, p_code, v_code),
           log_sequence = COALESCE(p_log_sequence, log_sequence), attempts = 0,
           next_retry_at = NULL, updated_at = clock_timestamp(),
           history = history || (p_event_id, clock_timestamp(), p_attempt, v_states, p_actor,
                                 COALESCE(code_name(COALESCE(p_code, v_code)), p_reason)
                                )::transfer_step
     WHERE req_id = p_req_id AND state = p_from
    RETURNING * INTO v_row;
    IF NOT FOUND THEN
        SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'no transfer %', ulid_text(p_req_id) USING ERRCODE = 'UB002';
        END IF;
        RETURN v_row;
    END IF;
    RETURN v_row;
END
$$;
