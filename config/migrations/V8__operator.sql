-- ubscore, version 8: what an operator ends.
--
-- "Not found" is not "never will be": a transfer whose participant does not answer is asked for again, for ever. An operator
-- who ends that has a refusal recorded where the answer would be. From then on no late call can succeed, and the transfer
-- goes the way of any refusal.

-- Decides a withdraw (1) or a deposit (2) of a transfer against it, whatever its account would say, unless it is decided
-- already: the first that is recorded stands. Returns what is recorded, as funding_operate does.
CREATE FUNCTION funding_refuse(p_req_id VARCHAR, p_op SMALLINT, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC)
RETURNS VARCHAR LANGUAGE plpgsql AS $$
BEGIN
    IF p_op NOT IN (1, 2) THEN
        RAISE EXCEPTION 'operation % of % is never refused', p_op, p_req_id USING ERRCODE = 'UB002';
    END IF;
    -- Whoever is deciding it at this moment is waited for.
    INSERT INTO transfer_operations (req_id, op, outcome, code, user_id, asset_id, amount)
    VALUES (p_req_id, p_op, 2, 'RESOLVED_BY_OPERATOR', p_user, p_asset, p_amount) ON CONFLICT DO NOTHING;
    RETURN funding_operate(p_req_id, p_op, p_user, p_asset, p_amount);
END
$$;

-- What transfer_step does, but that Funding refuses what it has not decided.
CREATE FUNCTION transfer_refuse(
    p_req_id VARCHAR, p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[],
    p_code VARCHAR, p_log_sequence BIGINT, p_attempt INTEGER, p_actor TEXT, p_reason TEXT)
RETURNS transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_row transfers_tb%ROWTYPE;
BEGIN
    SELECT * INTO v_row FROM transfers_tb WHERE req_id = p_req_id FOR UPDATE;
    -- Moved by another before, it has nothing to refuse here any more.
    IF FOUND AND v_row.state = p_from THEN
        PERFORM funding_refuse(p_req_id, p_op, v_row.user_id, v_row.asset_id, v_row.amount);
    END IF;
    SELECT * INTO v_row FROM transfer_step(p_req_id, p_from, p_path, p_op, p_success, p_refused, p_code, p_log_sequence,
                                           p_attempt, p_actor, p_reason);
    RETURN v_row;
END
$$;
