-- Funding: balances, and the operations of transfers on them, decided here. A repair from the log
-- uses these functions while no process serves. All other operations are decided in the process,
-- and written by flights.
--
-- Puts an amount into Funding, for any status of the account. Makes the row of a new asset. Returns
-- the balance afterwards.
CREATE FUNCTION funding_credit(p_user BIGINT, p_asset INTEGER, p_amount BIGINT) RETURNS NUMERIC
LANGUAGE plpgsql AS $$
DECLARE
    v_after NUMERIC;
BEGIN
    INSERT INTO balances_tb AS b (user_id, asset_id, available)
    VALUES (p_user, p_asset, p_amount)
    ON CONFLICT (user_id, asset_id)
    DO UPDATE SET available = b.available + EXCLUDED.available, version = b.version + 1
    RETURNING available INTO v_after;
    RETURN v_after;
END
$$;

-- Takes an amount out of Funding. Returns the balance afterwards; NULL if there is not enough.
CREATE FUNCTION funding_debit(p_user BIGINT, p_asset INTEGER, p_amount BIGINT) RETURNS NUMERIC
LANGUAGE plpgsql AS $$
DECLARE
    v_after NUMERIC;
BEGIN
    UPDATE balances_tb SET available = available - p_amount, version = version + 1
     WHERE user_id = p_user AND asset_id = p_asset AND available >= p_amount
    RETURNING available INTO v_after;
    RETURN v_after;
END
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
