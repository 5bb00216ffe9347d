-- The second judge: the decisions that PostgreSQL made before the process did.
--
-- The code with which an account of this status refuses an operation; NULL if it does not. The
-- status is NULL if there is no account. A refund is never refused.
CREATE FUNCTION funding_refusal(p_op SMALLINT, p_status SMALLINT) RETURNS SMALLINT
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_op = 3 OR p_status = 1 THEN NULL
                WHEN p_status IS NULL AND p_op = 2 THEN 21 -- TARGET_ACCOUNT_NOT_FOUND
                WHEN p_status IS NULL THEN 20 -- SOURCE_ACCOUNT_NOT_FOUND
                WHEN p_status = 3 THEN 23 -- ACCOUNT_DISABLED
                WHEN p_op IN (1, 5) THEN 22 -- ACCOUNT_FROZEN
           END::smallint
$$;

-- Decides an operation of a transfer once. Every repeat returns the same decision: NULL for a
-- success, the code of a refusal. UB002: the operation is not one of this transfer on Funding, or
-- the refund of an amount that was never withdrawn.
CREATE FUNCTION funding_operate(p_req_id UUID, p_op SMALLINT)
RETURNS SMALLINT LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfers_tb%ROWTYPE;
    v_status SMALLINT;
    v_code   SMALLINT;
    v_after  NUMERIC;
BEGIN
    SELECT * INTO STRICT v_row FROM transfers_tb WHERE req_id = p_req_id FOR UPDATE;
    IF p_op = 3 THEN
        IF v_row.refund_at IS NOT NULL THEN
            RETURN NULL;
        END IF;
        IF v_row.direction <> 1 OR v_row.funding_at IS NULL OR v_row.funding_code IS NOT NULL
        THEN
            RAISE EXCEPTION 'refund of %, which was not withdrawn', ulid_text(p_req_id)
                USING ERRCODE = 'UB002';
        END IF;
        -- The account's status does not count: a refund is never refused.
        v_after := funding_credit(v_row.user_id, v_row.asset_id, v_row.amount);
        UPDATE transfers_tb SET refund_at = clock_timestamp(), refund_after = v_after
         WHERE req_id = p_req_id;
        RETURN NULL;
    END IF;
    IF p_op <> v_row.direction THEN
        RAISE EXCEPTION 'operation % of % is not on Funding', p_op, ulid_text(p_req_id)
            USING ERRCODE = 'UB002';
    END IF;
    IF v_row.funding_at IS NOT NULL THEN
        RETURN v_row.funding_code;
    END IF;
    SELECT status INTO v_status FROM accounts_tb WHERE user_id = v_row.user_id;
    v_code := funding_refusal(p_op, v_status);
    IF v_code IS NULL AND p_op = 2 THEN
        v_after := funding_credit(v_row.user_id, v_row.asset_id, v_row.amount);
    ELSIF v_code IS NULL THEN
        v_after := funding_debit(v_row.user_id, v_row.asset_id, v_row.amount);
        IF v_after IS NULL THEN
            v_code := 24; -- INSUFFICIENT_BALANCE
        END IF;
    END IF;
    UPDATE transfers_tb
       SET funding_at = clock_timestamp(), funding_code = v_code, funding_after = v_after
     WHERE req_id = p_req_id;
    RETURN v_code;
END
$$;
