-- Changes of Funding balances by a repair from the log, while no process serves. Every decision is
-- made in the process, and all other changes are written by flights.
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
