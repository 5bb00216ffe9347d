-- The watermark, and the totals of everything below it. The schema describes both at
-- `watermark_totals`.

-- Returns the milliseconds that processes of this database have lived. p_lived_ms: the life of this
-- process so far, by its monotonic clock. It is absolute: a repeat after a lost answer counts
-- nothing twice.
CREATE FUNCTION watermark_lived(p_incarnation BIGINT, p_lived_ms BIGINT) RETURNS BIGINT
LANGUAGE sql AS $$
    UPDATE watermark_clock
       SET before_ms = CASE WHEN incarnation = p_incarnation THEN before_ms
                            ELSE before_ms + lived_ms END,
           lived_ms = CASE WHEN incarnation = p_incarnation THEN GREATEST(lived_ms, p_lived_ms)
                           ELSE p_lived_ms END,
           incarnation = p_incarnation
    RETURNING before_ms + lived_ms
$$;

-- Notes that everything below p_number is terminal now; NULL if that is not known. Returns the
-- largest number for which it was so p_keep_ms of lived time ago, 0 if there is none.
CREATE FUNCTION watermark_observe(
    p_incarnation BIGINT, p_number BIGINT, p_lived_ms BIGINT, p_keep_ms BIGINT)
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_now  BIGINT;
    v_ripe BIGINT;
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    v_now := watermark_lived(p_incarnation, p_lived_ms);
    -- 256 sightings in a keep time are fine enough, and a bound on the table.
    INSERT INTO watermark_sightings
    SELECT p_number, v_now
     WHERE p_number > (SELECT COALESCE(max(order_number), 0) FROM watermark_sightings)
       AND v_now - (SELECT COALESCE(max(seen_ms), v_now - p_keep_ms) FROM watermark_sightings)
           >= p_keep_ms / 256;
    SELECT COALESCE(max(order_number), 0) INTO v_ripe
      FROM watermark_sightings WHERE seen_ms <= v_now - p_keep_ms;
    DELETE FROM watermark_sightings WHERE order_number < v_ripe;
    RETURN v_ripe;
END
$$;

-- Notes where the transfers are that are under way: see watermark_open.
CREATE FUNCTION watermark_note_open(
    p_incarnation BIGINT, p_open_from BIGINT, p_open_old BIGINT[])
RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    UPDATE watermark_open SET open_from = p_open_from, open_old = p_open_old
     WHERE (open_from, open_old) IS DISTINCT FROM (p_open_from, p_open_old);
END
$$;

-- Raises the watermark towards p_target, over at most p_rows transfers, external operations, holds
-- of Funding and transactions. p_target comes from watermark_observe. The totals follow in the same
-- transaction.
--
-- It stops before a transfer that is not terminal, and before a transaction that Funding or Spot
-- has not ended, or that became so within p_keep_ms by this server's clock. A row with a time of
-- the future does not stop it: while the clock ran ahead, rows got such times. p_target covers
-- them, because everything below it has been so for p_keep_ms of lived time.
--
-- It takes no table lock. Nothing below p_target can change: a number that is in use in a worker,
-- from its first moment until its row is terminal or proven absent, is at or above p_target.
--
-- A repeat, or an earlier call that was given up and arrives late, finds the watermark moved and
-- changes nothing. While the service is halted, nothing is raised.
--
-- Returns the watermark, whether a further call would find more, and the age of the oldest transfer
-- above it, in seconds.
CREATE FUNCTION watermark_raise(
    p_incarnation BIGINT, p_target BIGINT, p_keep_ms BIGINT, p_rows INTEGER,
    OUT o_watermark BIGINT, OUT o_more BOOLEAN, OUT o_oldest_s DOUBLE PRECISION)
-- A page is read by its keys: statistics say nothing of the newest rows.
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_halted        BOOLEAN;
    v_old           BIGINT;
    v_new           BIGINT;
    v_held          BIGINT;
    v_found         BIGINT;
    v_recount       BIGINT;
BEGIN
    SELECT halted, watermark INTO v_halted, v_old
      FROM engine_state WHERE incarnation = p_incarnation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
    IF v_halted THEN
        -- An operator has to find the cause, so nothing may be forgotten.
        p_target := v_old;
    END IF;

    -- One page of order numbers, and the first transfer of it that holds the watermark.
    SELECT max(order_number) + 1 INTO v_new
      FROM (SELECT order_number FROM (
                (SELECT order_number FROM transfers_tb
                  WHERE order_number >= v_old AND order_number < p_target
                  ORDER BY order_number LIMIT p_rows)
                UNION ALL
                (SELECT order_number FROM external_operations
                  WHERE order_number >= v_old AND order_number < p_target
                  ORDER BY order_number LIMIT p_rows)
                UNION ALL
                (SELECT order_number FROM funding_holds
                  WHERE order_number >= v_old AND order_number < p_target
                  ORDER BY order_number LIMIT p_rows)
                UNION ALL
                (SELECT order_number FROM transactions_tb
                  WHERE order_number >= v_old AND order_number < p_target
                  ORDER BY order_number LIMIT p_rows)) AS all_kinds
             ORDER BY order_number LIMIT p_rows) AS page
    HAVING count(*) = p_rows;
    o_more := v_new IS NOT NULL;
    v_new := GREATEST(v_old, COALESCE(v_new, p_target));
    -- The transactions first: they shorten the page.
    SELECT min(order_number) INTO v_held
      FROM transactions_tb
     WHERE order_number >= v_old AND order_number < v_new
       -- Its services may owe their answers for long: they are asked by other names.
       AND (stores_ended_at IS NULL AND state NOT IN (40, -20)
            OR COALESCE(stores_ended_at, updated_at)
               BETWEEN clock_timestamp() - p_keep_ms * interval '1 millisecond'
                   AND clock_timestamp());
    IF v_held IS NOT NULL THEN
        v_new := v_held;
        o_more := FALSE;
    END IF;
    WITH page AS MATERIALIZED (
        SELECT order_number,
               state NOT IN (40, -10, -30)
               OR updated_at BETWEEN clock_timestamp() - p_keep_ms * interval '1 millisecond'
                                 AND clock_timestamp() AS holds
          FROM transfers_tb WHERE order_number >= v_old AND order_number < v_new
    ), held AS (SELECT min(order_number) FILTER (WHERE holds) AS first FROM page)
    SELECT first, count(*) FILTER (WHERE first IS NULL OR order_number < first)
      INTO v_held, v_found
      FROM page CROSS JOIN held GROUP BY first;
    v_found := COALESCE(v_found, 0);
    IF v_held IS NOT NULL THEN
        v_new := v_held;
        o_more := FALSE;
    END IF;
    -- An open hold of reason 1 is that of a transaction under way. Its number is above p_target,
    -- unless a person has changed its row. A hold of a return may be open for days, and changes no
    -- sum of a balance.
    SELECT min(order_number) INTO v_held FROM funding_holds
     WHERE order_number >= v_old AND order_number < v_new AND state = 10 AND reason = 1;
    IF v_held IS NOT NULL THEN
        v_new := v_held;
        o_more := FALSE;
        SELECT count(*) INTO v_found
          FROM transfers_tb WHERE order_number >= v_old AND order_number < v_new;
    END IF;

    SELECT v_found + count(*) INTO v_found
      FROM external_operations WHERE order_number >= v_old AND order_number < v_new;
    SELECT v_found + count(*) INTO v_found
      FROM funding_holds WHERE order_number >= v_old AND order_number < v_new;
    SELECT v_found + count(*) INTO v_found
      FROM transactions_tb WHERE order_number >= v_old AND order_number < v_new;

    INSERT INTO watermark_totals AS totals
           (user_id, asset_id, funding_withdrawn, funding_deposited, funding_refunded,
            spot_withdrawn, spot_deposited, spot_refunded, external_deposited, external_withdrawn,
            transaction_taken, transaction_brought, transaction_deposited, transaction_withdrawn)
    SELECT user_id, asset_id,
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 3), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 3), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'outside' AND op = 4), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'outside' AND op = 5), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'hold' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'hold' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'world' AND op = 4), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'world' AND op = 5), 0)
      FROM (
        SELECT t.user_id, t.asset_id, 'funding' AS place, done.op, t.amount
          FROM transfers_tb t
         CROSS JOIN LATERAL unnest(funding_operations(
                   t.direction, t.funding_at, t.funding_code, t.refund_at)) AS done (op)
         WHERE t.order_number >= v_old AND t.order_number < v_new
        UNION ALL
        SELECT t.user_id, t.asset_id, 'spot', claimed.op, t.amount
          FROM transfers_tb t
         CROSS JOIN LATERAL unnest(spot_operations(t.direction, t.state)) AS claimed (op)
         WHERE t.order_number >= v_old AND t.order_number < v_new
        UNION ALL
        SELECT user_id, asset_id, 'outside', op, amount
          FROM external_operations
         WHERE order_number >= v_old AND order_number < v_new AND code IS NULL
        UNION ALL
        SELECT h.user_id, h.asset_id, 'hold', moved.op, moved.amount
          FROM funding_holds h
         CROSS JOIN LATERAL (VALUES (1::SMALLINT, h.taken), (2, h.brought)) AS moved (op, amount)
         WHERE h.order_number >= v_old AND h.order_number < v_new AND moved.amount > 0
        UNION ALL
        SELECT o.user_id, o.asset_id, 'world', moved.op, moved.amount
          FROM transactions_tb t
         CROSS JOIN LATERAL transaction_outside(t.transaction_id) AS o
         CROSS JOIN LATERAL (VALUES (4::SMALLINT, o.deposited), (5, o.withdrawn))
               AS moved (op, amount)
         WHERE t.order_number >= v_old AND t.order_number < v_new
           AND transaction_is_booked(t.state, t.stores_ended_at) AND moved.amount > 0
      ) AS passed
     GROUP BY user_id, asset_id ORDER BY user_id, asset_id
    ON CONFLICT (user_id, asset_id) DO UPDATE SET
        funding_withdrawn  = totals.funding_withdrawn  + EXCLUDED.funding_withdrawn,
        funding_deposited  = totals.funding_deposited  + EXCLUDED.funding_deposited,
        funding_refunded   = totals.funding_refunded   + EXCLUDED.funding_refunded,
        spot_withdrawn     = totals.spot_withdrawn     + EXCLUDED.spot_withdrawn,
        spot_deposited     = totals.spot_deposited     + EXCLUDED.spot_deposited,
        spot_refunded      = totals.spot_refunded      + EXCLUDED.spot_refunded,
        external_deposited = totals.external_deposited + EXCLUDED.external_deposited,
        external_withdrawn = totals.external_withdrawn + EXCLUDED.external_withdrawn,
        transaction_taken   = totals.transaction_taken   + EXCLUDED.transaction_taken,
        transaction_brought = totals.transaction_brought + EXCLUDED.transaction_brought,
        transaction_deposited = totals.transaction_deposited + EXCLUDED.transaction_deposited,
        transaction_withdrawn = totals.transaction_withdrawn + EXCLUDED.transaction_withdrawn;

    IF NOT v_halted AND v_new > v_old THEN
        -- The workers promise that no flight brings a number below p_target. This is the same
        -- promise once more.
        SELECT (SELECT count(*) FROM transfers_tb
                 WHERE order_number >= v_old AND order_number < v_new)
               + (SELECT count(*) FROM external_operations
                   WHERE order_number >= v_old AND order_number < v_new)
               + (SELECT count(*) FROM funding_holds
                   WHERE order_number >= v_old AND order_number < v_new)
               + (SELECT count(*) FROM transactions_tb
                   WHERE order_number >= v_old AND order_number < v_new)
          INTO v_recount;
        IF v_recount <> v_found THEN
            RAISE EXCEPTION 'between order numbers % and % there were % rows, and now there are %',
                v_old, v_new, v_found, v_recount USING ERRCODE = 'UB003';
        END IF;
        UPDATE engine_state SET watermark = v_new
         WHERE incarnation = p_incarnation AND NOT halted AND watermark = v_old;
        IF NOT FOUND THEN
            PERFORM fence_incarnation(p_incarnation);
            RAISE EXCEPTION
                'the watermark has been raised from % by another call, or the service was halted',
                v_old USING ERRCODE = 'UB004';
        END IF;
    END IF;
    o_watermark := v_new;
    SELECT extract(epoch FROM clock_timestamp() - created_at) INTO o_oldest_s
      FROM transfers_tb WHERE order_number >= v_new ORDER BY order_number LIMIT 1;
END
$$;

-- Deletes holds below the watermark that have ended and moved nothing, at most p_rows. Returns how
-- many. Those that moved money stay, as transfers do: a statement shows them.
CREATE FUNCTION holds_trim(p_rows INTEGER) RETURNS BIGINT LANGUAGE sql
SET enable_seqscan = off AS $$
    WITH gone AS (
        DELETE FROM funding_holds WHERE hold_key IN (
            SELECT hold_key FROM funding_holds
             WHERE order_number < (SELECT watermark FROM engine_state)
               AND state <> 10 AND taken = 0 AND brought = 0
               AND deposited = 0 AND withdrawn = 0
             LIMIT p_rows)
        RETURNING 1)
    SELECT count(*) FROM gone
$$;

-- Compares the totals below the watermark with all rows below it. The difference is the first one,
-- in the order of the table's columns.
CREATE FUNCTION watermark_recount()
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    WITH below AS (
        SELECT t.* FROM transfers_tb t, engine_state e WHERE t.order_number < e.watermark
    ), rows AS (
        SELECT b.user_id, b.asset_id, 'funding' || done.op AS part, b.amount
          FROM below b
         CROSS JOIN LATERAL unnest(funding_operations(
                   b.direction, b.funding_at, b.funding_code, b.refund_at)) AS done (op)
        UNION ALL
        SELECT b.user_id, b.asset_id, 'spot' || claimed.op, b.amount
          FROM below b
         CROSS JOIN LATERAL unnest(spot_operations(b.direction, b.state)) AS claimed (op)
        UNION ALL
        SELECT x.user_id, x.asset_id, 'outside' || x.op, x.amount
          FROM external_operations x, engine_state e
         WHERE x.order_number < e.watermark AND x.code IS NULL
        UNION ALL
        SELECT h.user_id, h.asset_id, 'hold' || moved.op, moved.amount
          FROM engine_state e CROSS JOIN funding_holds h
         CROSS JOIN LATERAL (VALUES (1, h.taken), (2, h.brought)) AS moved (op, amount)
         WHERE h.order_number < e.watermark AND moved.amount > 0
        UNION ALL
        SELECT o.user_id, o.asset_id, 'world' || moved.op, moved.amount
          FROM engine_state e CROSS JOIN transactions_tb t
         CROSS JOIN LATERAL transaction_outside(t.transaction_id) AS o
         CROSS JOIN LATERAL (VALUES (4, o.deposited), (5, o.withdrawn)) AS moved (op, amount)
         WHERE t.order_number < e.watermark AND moved.amount > 0
           AND transaction_is_booked(t.state, t.stores_ended_at)
    ), totals AS (
        SELECT w.user_id, w.asset_id, parts.part, parts.amount
          FROM watermark_totals w CROSS JOIN LATERAL (VALUES
            ('funding1', funding_withdrawn), ('funding2', funding_deposited),
            ('funding3', funding_refunded), ('spot1', spot_withdrawn),
            ('spot2', spot_deposited), ('spot3', spot_refunded),
            ('outside4', external_deposited), ('outside5', external_withdrawn),
            ('hold1', transaction_taken), ('hold2', transaction_brought),
            ('world4', transaction_deposited), ('world5', transaction_withdrawn))
            AS parts (part, amount)
    )
    SELECT DISTINCT ON (user_id, asset_id) user_id, asset_id, SUM(kept) - SUM(counted) FROM (
        SELECT user_id, asset_id, part, amount AS kept, 0 AS counted FROM totals
        UNION ALL SELECT user_id, asset_id, part, 0, amount FROM rows
    ) AS both_sides GROUP BY user_id, asset_id, part HAVING SUM(kept) <> SUM(counted)
    ORDER BY user_id, asset_id, part
$$;
