-- The tables as people read them: amounts as decimals, ULIDs as text, codes by their names.
--
-- No program reads these views. A search by req_id reads every row of a view. The key finds it:
-- SELECT * FROM transfers WHERE order_number =
--   (SELECT order_number FROM transfers_tb WHERE req_id = ulid_uuid('01K...'))

-- The ULID with this text. Any other text is an error.
CREATE FUNCTION ulid_uuid(p_text TEXT) RETURNS UUID LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF upper(p_text) !~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}$' THEN
        RAISE EXCEPTION '% is not a ULID', p_text USING ERRCODE = '22P02';
    END IF;
    RETURN (SELECT string_agg(lpad(to_hex(substring(bits FROM part * 16 + 3 FOR 16)::integer),
                                   4, '0'), '' ORDER BY part)
              FROM (SELECT string_agg((strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ',
                                              substr(upper(p_text), digit, 1)) - 1)::bit(5)::text,
                                      '' ORDER BY digit)::varbit AS bits
                      FROM generate_series(1, 26) AS digit) AS b,
                   generate_series(0, 7) AS part)::uuid;
END
$$;

-- An amount as a decimal without trailing zeros. It stays in smallest units without a precision,
-- if the asset has no row.
CREATE FUNCTION decimals(p_units NUMERIC, p_precision SMALLINT) RETURNS NUMERIC
LANGUAGE sql IMMUTABLE AS $$
    SELECT trim_scale(p_units * ('1e-' || COALESCE(p_precision, 0))::numeric)
$$;

-- The name of a code.
CREATE FUNCTION code_name(p_code SMALLINT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_code
        WHEN 1 THEN 'UNAUTHORIZED'
        WHEN 2 THEN 'FORBIDDEN'
        WHEN 3 THEN 'INVALID_REQUEST'
        WHEN 4 THEN 'SAME_ACCOUNT'
        WHEN 5 THEN 'INVALID_ACCOUNT_TYPE'
        WHEN 6 THEN 'UNSUPPORTED_ACCOUNT_TYPE'
        WHEN 7 THEN 'INVALID_ASSET'
        WHEN 8 THEN 'ASSET_SUSPENDED'
        WHEN 9 THEN 'TRANSFER_NOT_ALLOWED'
        WHEN 10 THEN 'INVALID_AMOUNT'
        WHEN 11 THEN 'PRECISION_OVERFLOW'
        WHEN 12 THEN 'OVERFLOW'
        WHEN 13 THEN 'AMOUNT_TOO_SMALL'
        WHEN 14 THEN 'AMOUNT_TOO_LARGE'
        WHEN 15 THEN 'RATE_LIMIT_EXCEEDED'
        WHEN 16 THEN 'DAILY_LIMIT_EXCEEDED'
        WHEN 17 THEN 'DAILY_AMOUNT_EXCEEDED'
        WHEN 18 THEN 'DUPLICATE_REQUEST'
        WHEN 19 THEN 'IDEM_KEY_CONFLICT'
        WHEN 20 THEN 'SOURCE_ACCOUNT_NOT_FOUND'
        WHEN 21 THEN 'TARGET_ACCOUNT_NOT_FOUND'
        WHEN 22 THEN 'ACCOUNT_FROZEN'
        WHEN 23 THEN 'ACCOUNT_DISABLED'
        WHEN 24 THEN 'INSUFFICIENT_BALANCE'
        WHEN 25 THEN 'TRANSFER_NOT_FOUND'
        WHEN 26 THEN 'NOT_FOUND'
        WHEN 27 THEN 'METHOD_NOT_ALLOWED'
        WHEN 28 THEN 'RESOLVED_BY_OPERATOR'
        WHEN 29 THEN 'NOT_RESOLVABLE'
        WHEN 30 THEN 'OVERLOADED'
        WHEN 31 THEN 'SERVICE_HALTED'
        WHEN 32 THEN 'SYSTEM_ERROR'
        WHEN 33 THEN 'HOLD_NOT_FOUND'
        WHEN 34 THEN 'HOLD_EXCEEDED'
        WHEN 35 THEN 'INVALID_POSTING'
        WHEN 36 THEN 'INSUFFICIENT_FROZEN'
        WHEN 37 THEN 'TRANSACTION_NOT_FOUND'
        WHEN 38 THEN 'TRANSACTION_ABORTED'
        WHEN 39 THEN 'TRANSACTION_EXPIRED'
        WHEN 40 THEN 'TRANSACTION_DECIDED'
        WHEN 41 THEN 'TRANSACTION_UNTRIED'
        WHEN 42 THEN 'TX_ID_CONFLICT'
        WHEN 43 THEN 'PARTICIPANT_REFUSED'
        WHEN 44 THEN 'UNKNOWN_PARTICIPANT'
        WHEN 45 THEN 'WITHDRAWAL_HELD'
        WHEN 46 THEN 'INVALID_CHANNEL'
        WHEN 47 THEN 'CHANNEL_SUSPENDED'
        WHEN 48 THEN 'CHANNEL_REFUSED'
        WHEN 49 THEN 'PROMOTION_NOT_APPLICABLE'
        WHEN 50 THEN 'RECHARGE_NOT_FOUND'
        WHEN 51 THEN 'RECHARGE_PAID'
        WHEN 52 THEN 'NOT_RETURNABLE'
        WHEN 53 THEN 'TOO_MANY_OPEN'
        WHEN 54 THEN 'HELD_ENDED'
        ELSE p_code::text
    END
$$;

CREATE VIEW assets AS
    SELECT asset_id, symbol, precision, status, internal_transfer_enabled,
           decimals(min_transfer_amount, precision) AS min_transfer_amount,
           decimals(max_transfer_amount, precision) AS max_transfer_amount
      FROM assets_tb;

CREATE VIEW balances AS
    SELECT b.user_id, b.asset_id, a.symbol AS asset,
           decimals(b.available, a.precision) AS available,
           decimals(b.frozen, a.precision) AS frozen, b.version, b.special
      FROM balances_tb b LEFT JOIN assets_tb a USING (asset_id);

CREATE VIEW transfers AS
    SELECT t.order_number, ulid_text(t.req_id) AS req_id, t.cid, t.user_id, t.direction,
           t.asset_id, a.symbol AS asset, decimals(t.amount, a.precision) AS amount, t.state,
           code_name(t.code) AS code, t.error_message, t.attempts, t.next_retry_at,
           t.log_sequence, t.created_at, t.updated_at, t.funding_at,
           code_name(t.funding_code) AS funding_code,
           decimals(t.funding_after, a.precision) AS funding_after, t.refund_at,
           decimals(t.refund_after, a.precision) AS refund_after, t.history
      FROM transfers_tb t LEFT JOIN assets_tb a USING (asset_id);

-- One row for each commit that moves a transfer.
CREATE VIEW transfer_history AS
    SELECT ulid_text(t.req_id) AS req_id, s.states, s.at, s.attempt, s.actor, s.reason, s.event_id
      FROM transfers_tb t CROSS JOIN LATERAL unnest(t.history) AS s;

-- One row for each decision of Funding. outcome: 1 success, 2 refused.
CREATE VIEW transfer_operations AS
    SELECT ulid_text(d.req_id) AS req_id, d.op,
           CASE WHEN d.code IS NULL THEN 1 ELSE 2 END::smallint AS outcome,
           code_name(d.code) AS code, d.user_id, d.asset_id,
           decimals(d.amount, a.precision) AS amount,
           decimals(d.balance_after, a.precision) AS balance_after, d.at
      FROM transfer_decisions d LEFT JOIN assets_tb a USING (asset_id);

CREATE VIEW externals AS
    SELECT x.order_number, x.idem_key, x.op,
           CASE WHEN x.code IS NULL THEN 1 ELSE 2 END::smallint AS outcome,
           code_name(x.code) AS code, x.user_id, x.asset_id, a.symbol AS asset,
           decimals(x.amount, a.precision) AS amount,
           decimals(x.balance_after, a.precision) AS balance_after, x.at
      FROM external_operations x LEFT JOIN assets_tb a USING (asset_id);

-- One row for each hold. state: 10 held, 40 settled, -20 released.
CREATE VIEW holds AS
    SELECT h.order_number, h.hold_key, h.user_id, h.asset_id, a.symbol AS asset,
           decimals(h.amount, a.precision) AS amount, h.state, h.round,
           code_name(h.round_code) AS round_code, decimals(h.taken, a.precision) AS taken,
           decimals(h.brought, a.precision) AS brought, h.reason, h.created_at, h.updated_at,
           h.purpose, decimals(h.deposited, a.precision) AS deposited,
           decimals(h.withdrawn, a.precision) AS withdrawn
      FROM funding_holds h LEFT JOIN assets_tb a USING (asset_id);

-- One row for each user, asset and purpose.
CREATE VIEW freezes AS
    SELECT f.user_id, f.asset_id, a.symbol AS asset, f.purpose,
           decimals(f.amount, a.precision) AS amount
      FROM freezes_tb f LEFT JOIN assets_tb a USING (asset_id);
