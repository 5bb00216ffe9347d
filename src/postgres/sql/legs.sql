-- Legs of transactions, as src/transaction/leg.rs writes them.

-- The text of a ULID: 26 digits to the base 32.
CREATE FUNCTION ulid_text(p_id UUID) RETURNS TEXT LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ',
                             substring(bits FROM digit * 5 + 1 FOR 5)::integer + 1, 1),
                      '' ORDER BY digit)
      FROM (SELECT B'00' || ('x' || replace(p_id::text, '-', ''))::bit(128) AS bits) AS b,
           generate_series(0, 25) AS digit
$$;

-- The user of a leg's place in a branch of p_participant; NULL for a place that is not the store's
-- own. A plain number is the store's own available balance.
CREATE FUNCTION leg_user(p_place JSONB, p_participant TEXT) RETURNS BIGINT
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(p_place) = 'number' THEN p_place::bigint
                WHEN p_place ->> 'account' = p_participant THEN (p_place ->> 'user')::bigint END
$$;

-- The purpose of a leg's place, 0 for an available balance.
CREATE FUNCTION leg_purpose(p_place JSONB) RETURNS INTEGER LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(p_place) = 'object'
                THEN COALESCE((p_place ->> 'purpose')::integer, 0) ELSE 0 END
$$;

-- Whether both stores have booked a transaction. From then on its money counts, and the watermark
-- may pass it, though a service owes the answer to its confirm.
CREATE FUNCTION transaction_is_booked(p_state SMALLINT, p_stores_ended_at TIMESTAMPTZ)
RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT p_state = 40 OR p_state = 30 AND p_stores_ended_at IS NOT NULL
$$;

-- Money that a booked transaction has brought from outside of both stores, or taken there, by the
-- user of the other place, as far as no external operation has it. The hold of a user that was
-- settled with such money says so (deposited, withdrawn), and then rows of external_operations
-- have all of it. A hold that a version before V11 has settled says 0, and its legs count here. A
-- hold that says so is never deleted. If a repair has booked one side of a leg between the stores
-- alone, its money came from outside too: an operator books the other side as an external
-- operation.
CREATE FUNCTION transaction_outside(p_id UUID)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, deposited NUMERIC, withdrawn NUMERIC)
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(leg_user(l."to", b.participant), leg_user(l."from", b.participant)), l.asset,
           COALESCE(sum(l.amount) FILTER (WHERE leg_user(l."from", b.participant) IS NULL), 0),
           COALESCE(sum(l.amount) FILTER (WHERE leg_user(l."to", b.participant) IS NULL), 0)
      FROM transaction_branches b
     CROSS JOIN LATERAL jsonb_to_recordset(b.legs)
           AS l ("from" JSONB, "to" JSONB, asset INTEGER, amount NUMERIC)
     WHERE b.transaction_id = p_id AND b.state = 40
       AND (leg_user(l."from", b.participant) IS NULL OR leg_user(l."to", b.participant) IS NULL)
       AND ('"OUTSIDE"' IN (l."from", l."to")
            AND (b.participant <> 'FUNDING'
                 OR NOT EXISTS (
                     SELECT FROM funding_holds h
                      WHERE (h.deposited > 0 OR h.withdrawn > 0)
                        AND h.hold_key = ulid_text(p_id) || ':'
                            || COALESCE(leg_user(l."to", b.participant),
                                        leg_user(l."from", b.participant)) || ':' || l.asset))
            OR '"OUTSIDE"' NOT IN (l."from", l."to")
            AND NOT EXISTS (
                SELECT FROM transaction_branches o
                 WHERE o.transaction_id = b.transaction_id AND o.round = b.round AND o.state = 40
                   AND o.participant = CASE b.participant WHEN 'SPOT' THEN 'FUNDING'
                                                          ELSE 'SPOT' END))
     GROUP BY 1, 2
$$;
