-- External operations: money that enters or leaves Funding from outside.
--
-- PostgreSQL decides an external operation. Before the caller has the answer, UBSCore's log records
-- the decision. The order number, from the same counter as those of transfers, ties row and record
-- together. At and above the watermark both are compared one by one, below it by their sums.

-- Decides a deposit (4) or a withdrawal (5) once per idem_key. The first deposit makes the account.
-- A repeat with another body gets o_conflict and changes nothing. o_order is the order number of
-- the row; NULL if the row has none.
CREATE FUNCTION external_operate(
    p_idem_key VARCHAR, p_op SMALLINT, p_user BIGINT, p_asset INTEGER, p_amount NUMERIC,
    p_actor TEXT, p_order BIGINT,
    OUT o_code VARCHAR, OUT o_after TEXT, OUT o_conflict BOOLEAN, OUT o_order BIGINT)
LANGUAGE plpgsql AS $$
DECLARE
    v_row    external_operations%ROWTYPE;
    v_status SMALLINT;
    v_after  NUMERIC;
BEGIN
    o_conflict := FALSE;
    o_order := p_order;
    -- The row first: a concurrent call with this key waits here, and then reads the decision.
    INSERT INTO external_operations (idem_key, op, outcome, user_id, asset_id, amount, order_number)
    VALUES (p_idem_key, p_op, 1, p_user, p_asset, p_amount, p_order)
    ON CONFLICT (idem_key) DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO v_row FROM external_operations WHERE idem_key = p_idem_key;
        o_conflict := (v_row.op, v_row.user_id, v_row.asset_id, v_row.amount)
                      IS DISTINCT FROM (p_op, p_user, p_asset, p_amount);
        o_code := v_row.code;
        o_after := v_row.balance_after::text;
        o_order := v_row.order_number;
        RETURN;
    END IF;
    -- UBSCore may have forgotten everything below the watermark. The worker promises that no such
    -- number comes.
    IF p_order < (SELECT watermark FROM engine_state) THEN
        RAISE EXCEPTION 'external operation % has order number %, which is below the watermark',
            p_idem_key, p_order USING ERRCODE = 'UB003';
    END IF;
    IF p_op = 4 THEN
        INSERT INTO accounts_tb (user_id, account_type) VALUES (p_user, 1) ON CONFLICT DO NOTHING;
    END IF;
    SELECT status INTO v_status FROM accounts_tb WHERE user_id = p_user AND account_type = 1;
    o_code := funding_refusal(p_op, v_status);
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
       SET outcome = CASE WHEN o_code IS NULL THEN 1 ELSE 2 END, code = o_code,
           balance_after = v_after
     WHERE idem_key = p_idem_key;
    INSERT INTO admin_audit (actor, action, subject, detail, reason)
    VALUES (p_actor, CASE p_op WHEN 4 THEN 'deposit' ELSE 'withdrawal' END, p_user::text,
            format('asset %s amount %s idem_key %s outcome %s', p_asset, p_amount, p_idem_key,
                   COALESCE(o_code, 'SUCCESS')), 'external');
END
$$;
