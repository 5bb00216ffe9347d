-- ubscore, version 15: a clock that ran ahead and is right again delays nothing.
--
-- While PostgreSQL's clock is ahead, rows get stamps of the future. Until version 14 such a row held the watermark, its
-- event and its delivery until that date. From here on the age of a row counts in lived time (see watermark_clock).

-- As in version 2, but a row stamped in the future does not hold the watermark. p_target covers it: everything below it
-- has been terminal for p_keep_ms of lived time.
CREATE OR REPLACE FUNCTION watermark_raise(
    p_incarnation BIGINT, p_target BIGINT, p_keep_ms BIGINT, p_rows INTEGER,
    OUT o_watermark BIGINT, OUT o_more BOOLEAN, OUT o_oldest_s DOUBLE PRECISION)
-- A page is read by its keys, whatever the statistics say of the newest rows.
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_halted        BOOLEAN;
    v_old           BIGINT;
    v_new           BIGINT;
    v_held          BIGINT;
    v_found         BIGINT;
    v_recount       BIGINT;
    v_external_old  BIGINT;
    v_external_new  BIGINT;
    v_settled       BIGINT;
    v_external_next BIGINT;
BEGIN
    SELECT halted, watermark, external_watermark, external_settled INTO v_halted, v_old, v_external_old, v_settled
      FROM engine_state WHERE incarnation = p_incarnation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
    IF v_halted THEN
        -- Somebody has to find out what is wrong: nothing may be forgotten meanwhile.
        p_target := v_old;
        v_settled := v_external_old;
    END IF;

    -- One page of order numbers, and the first of them that holds it.
    SELECT max(order_number) + 1 INTO v_new
      FROM (SELECT order_number FROM transfers_tb WHERE order_number >= v_old AND order_number < p_target
            ORDER BY order_number LIMIT p_rows) AS page
    HAVING count(*) = p_rows;
    o_more := v_new IS NOT NULL;
    v_new := GREATEST(v_old, COALESCE(v_new, p_target));
    WITH page AS MATERIALIZED (
        SELECT order_number,
               state NOT IN (40, -10, -30)
               OR updated_at BETWEEN clock_timestamp() - p_keep_ms * interval '1 millisecond'
                                 AND clock_timestamp() AS holds
          FROM transfers_tb WHERE order_number >= v_old AND order_number < v_new
    ), held AS (SELECT min(order_number) FILTER (WHERE holds) AS first FROM page)
    SELECT first, count(*) FILTER (WHERE first IS NULL OR order_number < first) INTO v_held, v_found
      FROM page CROSS JOIN held GROUP BY first;
    v_found := COALESCE(v_found, 0);
    IF v_held IS NOT NULL THEN
        v_new := v_held;
        o_more := FALSE;
    END IF;

    SELECT max(position) + 1 INTO v_external_new
      FROM (SELECT position FROM external_operations WHERE position >= v_external_old AND position < v_settled
            ORDER BY position LIMIT p_rows) AS page
    HAVING count(*) = p_rows;
    o_more := o_more OR v_external_new IS NOT NULL;
    v_external_new := COALESCE(v_external_new, v_settled);

    INSERT INTO watermark_totals AS totals
    SELECT user_id, asset_id,
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 3), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 3), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'outside' AND op = 4), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'outside' AND op = 5), 0)
      FROM (
        SELECT o.user_id, o.asset_id, 'funding' AS place, o.op, o.amount
          FROM transfers_tb t JOIN transfer_operations o ON o.req_id = t.req_id AND o.outcome = 1
         WHERE t.order_number >= v_old AND t.order_number < v_new
        UNION ALL
        SELECT t.user_id, t.asset_id, 'spot', claimed.op, t.amount
          FROM transfers_tb t CROSS JOIN LATERAL unnest(spot_operations(t.transfer_type, t.state)) AS claimed (op)
         WHERE t.order_number >= v_old AND t.order_number < v_new
        UNION ALL
        SELECT user_id, asset_id, 'outside', op, amount
          FROM external_operations
         WHERE position >= v_external_old AND position < v_external_new AND outcome = 1
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
        external_withdrawn = totals.external_withdrawn + EXCLUDED.external_withdrawn;

    SELECT COALESCE(max(position), 0) + 1 INTO v_external_next FROM external_operations;
    IF NOT v_halted AND (v_new > v_old OR v_external_new > v_external_old OR v_external_next > v_settled) THEN
        LOCK TABLE engine_state IN EXCLUSIVE MODE;
        -- Nothing that was added up may have been joined by another meanwhile.
        SELECT count(*) INTO v_recount FROM transfers_tb WHERE order_number >= v_old AND order_number < v_new;
        IF v_recount <> v_found THEN
            RAISE EXCEPTION 'between order numbers % and % there were % transfers, and now there are %',
                v_old, v_new, v_found, v_recount USING ERRCODE = 'UB003';
        END IF;
        -- No batch is under way: whoever comes later takes a position above every one that is there.
        SELECT COALESCE(max(position), 0) + 1 INTO v_external_next FROM external_operations;
        UPDATE engine_state
           SET watermark = v_new, external_watermark = v_external_new,
               external_settled = GREATEST(external_settled, v_external_next)
         WHERE incarnation = p_incarnation AND NOT halted
           AND watermark = v_old AND external_watermark = v_external_old;
        IF NOT FOUND THEN
            PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
            END IF;
            RAISE EXCEPTION 'the watermark has been raised from % by another call, or the service was halted', v_old
                USING ERRCODE = 'UB004';
        END IF;
    END IF;
    o_watermark := v_new;
    SELECT extract(epoch FROM clock_timestamp() - created_at) INTO o_oldest_s
      FROM transfers_tb WHERE order_number >= v_new ORDER BY order_number LIMIT 1;
END
$$;

-- Events up to event_id existed when processes of this database had lived for seen_ms. An event's id holds a time too, but
-- a clock that ran ahead leaves it, and all ids after it, in the future.
CREATE TABLE events_sightings (
    event_id BIGINT PRIMARY KEY,
    seen_ms  BIGINT NOT NULL,
    coarse   BOOLEAN NOT NULL      -- stays for the longer keep time
);

-- Milliseconds that processes of this database have lived; p_lived_ms: this process so far, by its monotonic clock.
CREATE FUNCTION watermark_lived(p_incarnation BIGINT, p_lived_ms BIGINT) RETURNS BIGINT LANGUAGE sql AS $$
    UPDATE watermark_clock
       SET before_ms = CASE WHEN incarnation = p_incarnation THEN before_ms ELSE before_ms + lived_ms END,
           lived_ms = CASE WHEN incarnation = p_incarnation THEN GREATEST(lived_ms, p_lived_ms) ELSE p_lived_ms END,
           incarnation = p_incarnation
    RETURNING before_ms + lived_ms
$$;

-- As in version 12, but the age of an event is lived time. A delivery that ended goes once its event is that old and its own
-- stamp is; a stamp of the future does not count.
DROP FUNCTION events_purge(BIGINT, DOUBLE PRECISION, DOUBLE PRECISION, INTEGER);
CREATE FUNCTION events_purge(
    p_incarnation BIGINT, p_lived_ms BIGINT, p_keep_ms BIGINT, p_dead_keep_ms BIGINT, p_rows INTEGER)
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_cursor  events_cursor%ROWTYPE;
    v_now     BIGINT;
    v_fine    BIGINT;
    v_coarse  BIGINT;
    v_old     BIGINT;
    v_late    BIGINT;
    v_end     BIGINT;
    v_last    BIGINT;
    v_changed BIGINT;
    v_most    BIGINT;
    v_before  TIMESTAMPTZ;
    v_letter  RECORD;
BEGIN
    v_cursor := events_fence(p_incarnation);
    v_now := watermark_lived(p_incarnation, p_lived_ms);
    -- 16 sightings of the shorter keep time, and 16 of the longer one, are fine enough and a bound on the table.
    SELECT max(seen_ms), max(seen_ms) FILTER (WHERE coarse) INTO v_fine, v_coarse FROM events_sightings;
    v_coarse := CASE WHEN v_now - v_coarse < GREATEST(p_keep_ms, p_dead_keep_ms) / 16 THEN v_coarse END;
    IF v_coarse IS NULL OR v_now - v_fine >= LEAST(p_keep_ms, p_dead_keep_ms) / 16 THEN
        INSERT INTO events_sightings SELECT v_cursor.last_event_id, v_now, v_coarse IS NULL
         WHERE v_cursor.last_event_id > (SELECT COALESCE(max(event_id), 0) FROM events_sightings);
    END IF;
    -- Events below these ids are older than p_keep_ms and p_dead_keep_ms.
    SELECT COALESCE(max(event_id) FILTER (WHERE seen_ms <= v_now - p_keep_ms) + 1, 0),
           COALESCE(max(event_id) FILTER (WHERE seen_ms <= v_now - p_dead_keep_ms) + 1, 0)
      INTO v_old, v_late FROM events_sightings;
    DELETE FROM events_sightings
     WHERE event_id < LEAST(v_old, v_late) - 1 OR NOT coarse AND event_id < GREATEST(v_old, v_late) - 1;
    -- By history_id: a plan by event_id would read all events to find that there is none.
    v_end := LEAST(v_old, (SELECT min(event_id) FROM (
        SELECT event_id FROM events_tb WHERE history_id > v_cursor.low_water ORDER BY history_id OFFSET 0) AS above));
    WITH gone AS (
        DELETE FROM events_tb WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM events_tb WHERE event_id < v_end ORDER BY event_id LIMIT p_rows))
        RETURNING event_id
    )
    SELECT max(event_id), count(*) INTO v_last, v_most FROM gone;
    IF v_last IS NOT NULL THEN
        UPDATE events_cursor SET kept_after = v_last;
    END IF;
    v_changed := 0;
    FOR v_letter IN
        WITH dead AS (
            UPDATE webhook_deliveries
               SET status = 3, ended_at = clock_timestamp(), next_at = NULL,
                   last_error = 'not delivered in time' || COALESCE(': ' || last_error, '')
             WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM webhook_deliveries WHERE ended_at IS NULL AND event_id < v_late
                 ORDER BY event_id LIMIT p_rows))
            RETURNING endpoint, req_id
        )
        SELECT endpoint, array_agg(DISTINCT req_id) AS req_ids, count(*) AS letters FROM dead GROUP BY endpoint
    LOOP
        PERFORM webhook_line_up(v_letter.endpoint, v_letter.req_ids);
        v_changed := v_changed + v_letter.letters;
    END LOOP;
    v_most := GREATEST(v_most, v_changed);
    FOR v_status IN 2..3 LOOP
        -- In a variable: a volatile function's value is none to look up in an index.
        v_before := clock_timestamp()
            - CASE v_status WHEN 2 THEN p_keep_ms ELSE p_dead_keep_ms END * interval '1 millisecond';
        v_end := CASE v_status WHEN 2 THEN v_old ELSE v_late END;
        DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at < v_before AND event_id < v_end
             ORDER BY ended_at LIMIT p_rows));
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        v_most := GREATEST(v_most, v_changed);
        v_before := clock_timestamp();
        DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at > v_before AND event_id < v_end
             ORDER BY ended_at LIMIT p_rows));
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        v_most := GREATEST(v_most, v_changed);
    END LOOP;
    RETURN v_most;
END
$$;
