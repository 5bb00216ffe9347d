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

-- The places that legs book as special.
CREATE FUNCTION special_places(p_legs TEXT[])
RETURNS TABLE (user_id BIGINT, asset_id INTEGER) LANGUAGE sql IMMUTABLE AS $$
    SELECT (side.place ->> 'user')::bigint, l.asset
      FROM unnest(p_legs) AS t (legs)
     CROSS JOIN LATERAL jsonb_to_recordset(t.legs::jsonb)
           AS l ("from" JSONB, "to" JSONB, asset INTEGER)
     CROSS JOIN LATERAL (VALUES (l."from"), (l."to")) AS side (place)
     WHERE jsonb_typeof(side.place) = 'object' AND side.place ->> 'special' = 'true'
$$;

-- Whether all places that these legs book as special are special. They stay so until this commit is
-- over: special_unset waits for it. A flight that changes the balance does not.
CREATE FUNCTION special_stands(p_legs TEXT[]) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_named BIGINT;
    v_found BIGINT;
BEGIN
    IF array_to_string(p_legs, '') NOT LIKE '%"special"%' THEN
        RETURN TRUE;
    END IF;
    SELECT count(DISTINCT (s.user_id, s.asset_id)) INTO v_named FROM special_places(p_legs) AS s;
    SELECT count(*) INTO v_found
      FROM (SELECT FROM balances_tb b
             WHERE b.special AND (b.user_id, b.asset_id)
                   IN (SELECT s.user_id, s.asset_id FROM special_places(p_legs) AS s)
               FOR KEY SHARE) AS held;
    RETURN v_named = v_found;
END
$$;

-- Whether these legs book each place of Funding as the rounds before do. A hold is special for all
-- rounds, or for none.
CREATE FUNCTION special_agrees(p_id UUID, p_participants TEXT[], p_legs TEXT[]) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM (
            SELECT legs FROM transaction_branches
             WHERE transaction_id = p_id AND participant = 'FUNDING'
            UNION ALL
            SELECT n.legs::jsonb FROM unnest(p_participants, p_legs) AS n (participant, legs)
             WHERE n.participant = 'FUNDING') AS b
         CROSS JOIN LATERAL jsonb_to_recordset(b.legs)
               AS l ("from" JSONB, "to" JSONB, asset INTEGER)
         CROSS JOIN LATERAL (VALUES (l."from"), (l."to")) AS side (place)
         WHERE leg_user(side.place, 'FUNDING') IS NOT NULL AND leg_purpose(side.place) = 0
         GROUP BY leg_user(side.place, 'FUNDING'), l.asset
        HAVING count(DISTINCT jsonb_typeof(side.place)) > 1)
$$;

-- Makes the balance of a user with an account special. Returns 'changed', 'same' or 'unknown'.
CREATE FUNCTION special_set(p_user BIGINT, p_asset INTEGER) RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM accounts_tb WHERE user_id = p_user) THEN
        RETURN 'unknown';
    END IF;
    INSERT INTO balances_tb AS b (user_id, asset_id, available, special)
    VALUES (p_user, p_asset, 0, TRUE)
    ON CONFLICT (user_id, asset_id) DO UPDATE SET special = TRUE WHERE NOT b.special;
    RETURN CASE WHEN FOUND THEN 'changed' ELSE 'same' END;
END
$$;

-- Takes that back. Returns 'changed', 'same', 'negative' (it is below zero), or 'named' (a
-- transaction that is not over books it as special).
CREATE FUNCTION special_unset(p_user BIGINT, p_asset INTEGER) RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_available NUMERIC;
BEGIN
    -- No round is accepted from here to the commit that names it.
    SELECT available INTO v_available FROM balances_tb
     WHERE user_id = p_user AND asset_id = p_asset AND special FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'same';
    ELSIF v_available < 0 THEN
        RETURN 'negative';
    END IF;
    -- A statement of its own: it sees the rounds that were accepted before the lock.
    PERFORM FROM transactions_tb t JOIN transaction_branches b USING (transaction_id)
      WHERE t.state NOT IN (40, -20) AND b.participant = 'FUNDING'
        AND EXISTS (SELECT FROM special_places(ARRAY[b.legs::text]) AS s
                     WHERE s.user_id = p_user AND s.asset_id = p_asset);
    IF FOUND THEN
        RETURN 'named';
    END IF;
    UPDATE balances_tb SET special = FALSE WHERE user_id = p_user AND asset_id = p_asset;
    RETURN 'changed';
END
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
