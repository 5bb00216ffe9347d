-- Funding: balances, and the operations of transfers on them, decided here. A repair from the log
-- uses these functions while no process serves. All other operations are decided in the process,
-- and written by flights.
--
-- PostgreSQL parses and plans an SQL function at every call, and keeps the plans of PL/pgSQL. The
-- functions that every transfer passes are therefore PL/pgSQL. Each reads, decides, and writes a
-- row once. If another transaction has inserted the same key in between, the unique key refuses
-- this transaction, and the next try finds the decision.

-- Puts an amount into Funding, for any status of the account. Makes the row of a new asset. Returns
-- the balance afterwards.
CREATE FUNCTION funding_credit(p_user BIGINT, p_asset INTEGER, p_amount NUMERIC) RETURNS NUMERIC
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

-- Takes an amount out of Funding. Returns the balance afterwards; NULL if there is not enough.
CREATE FUNCTION funding_debit(p_user BIGINT, p_asset INTEGER, p_amount NUMERIC) RETURNS NUMERIC
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

-- Decides an operation of a transfer once. Every repeat returns the same decision: NULL for a
-- success, the code of a refusal. A repeat with another user, asset or amount gets UB002 and
-- changes nothing. So does the refund of an amount that was never withdrawn.
CREATE FUNCTION funding_operate(
    p_req_id VARCHAR, p_op SMALLINT, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC)
RETURNS VARCHAR LANGUAGE plpgsql AS $$
DECLARE
    v_row    transfer_operations%ROWTYPE;
    v_status SMALLINT;
    v_code   VARCHAR;
    v_after  NUMERIC;
BEGIN
    SELECT * INTO v_row FROM transfer_operations WHERE req_id = p_req_id AND op = p_op;
    IF FOUND THEN
        IF (v_row.user_id, v_row.asset_id, v_row.amount)
           IS DISTINCT FROM (p_user, p_asset, p_amount) THEN
            RAISE EXCEPTION 'operation % of % repeated with another user, asset or amount',
                p_op, p_req_id USING ERRCODE = 'UB002';
        END IF;
        RETURN v_row.code;
    END IF;
    IF p_op = 3 THEN
        SELECT * INTO v_row FROM transfer_operations WHERE req_id = p_req_id AND op = 1;
        IF NOT FOUND OR v_row.outcome <> 1
           OR (v_row.user_id, v_row.asset_id, v_row.amount)
              IS DISTINCT FROM (p_user, p_asset, p_amount) THEN
            RAISE EXCEPTION 'refund of %, which was not withdrawn', p_req_id
                USING ERRCODE = 'UB002';
        END IF;
        -- The account's status does not count: a refund is never refused.
        v_after := funding_credit(p_user, p_asset, p_amount);
    ELSE
        SELECT status INTO v_status FROM accounts_tb WHERE user_id = p_user AND account_type = 1;
        v_code := funding_refusal(p_op, v_status);
        IF v_code IS NULL AND p_op = 2 THEN
            v_after := funding_credit(p_user, p_asset, p_amount);
        ELSIF v_code IS NULL THEN
            v_after := funding_debit(p_user, p_asset, p_amount);
            IF v_after IS NULL THEN
                v_code := 'INSUFFICIENT_BALANCE';
            END IF;
        END IF;
    END IF;
    INSERT INTO transfer_operations (req_id, op, outcome, code, user_id, asset_id, amount,
                                     balance_after)
    VALUES (p_req_id, p_op, CASE WHEN v_code IS NULL THEN 1 ELSE 2 END, v_code, p_user, p_asset,
            p_amount, v_after);
    RETURN v_code;
END
$$;
