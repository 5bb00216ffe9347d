-- States and operations of transfers: the rules that Rust and PostgreSQL share. Tests in
-- tests/schema.rs compare each with its twin in Rust.
--
-- States: 0 INIT, 10 SOURCE_PENDING, 20 SOURCE_DONE, 30 TARGET_PENDING, 40 COMMITTED, -10 FAILED,
-- -20 COMPENSATING, -30 ROLLED_BACK.
-- Operations: 1 withdraw, 2 deposit, 3 refund; from outside: 4 deposit, 5 withdrawal.

-- Whether a transfer in state p_old may be in state p_new some commits later. This is the
-- transitive closure of the state machine's table.
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

-- The operations on Spot that a terminal state claims.
CREATE FUNCTION spot_operations(p_direction SMALLINT, p_state SMALLINT) RETURNS SMALLINT[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_direction = 1 AND p_state = 40 THEN '{2}'::SMALLINT[]
                WHEN p_direction = 2 AND p_state = 40 THEN '{1}'
                WHEN p_direction = 2 AND p_state = -30 THEN '{1,3}'
                ELSE '{}' END
$$;

-- The operations of a transfer that succeeded on Funding: that of its direction, and the refund.
CREATE FUNCTION funding_operations(
    p_direction SMALLINT, p_funding_at TIMESTAMPTZ, p_funding_code SMALLINT,
    p_refund_at TIMESTAMPTZ)
RETURNS SMALLINT[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_refund_at IS NOT NULL THEN ARRAY[p_direction, 3::SMALLINT]
                WHEN p_funding_at IS NOT NULL AND p_funding_code IS NULL THEN ARRAY[p_direction]
                ELSE '{}' END
$$;

-- The change of a Funding balance by an operation that succeeded.
CREATE FUNCTION funding_effect(p_op SMALLINT, p_amount BIGINT) RETURNS BIGINT
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_op IN (1, 5) THEN -p_amount ELSE p_amount END
$$;
