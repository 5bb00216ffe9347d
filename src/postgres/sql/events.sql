-- Events: the relay of the serving process copies the history behind the commits, in transactions
-- one after the other, and gives each event its id there. An event is therefore visible only after
-- every event with a smaller id, in any order of the commits. A commit that moves a transfer writes
-- one number and one index entry for it, and waits for no other.

-- The first statement of every transaction that writes events or deliveries. A superseded process
-- gets UB001. The others go one after the other.
CREATE FUNCTION events_fence(p_incarnation BIGINT) RETURNS events_cursor LANGUAGE plpgsql AS $$
DECLARE
    v_cursor events_cursor%ROWTYPE;
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    SELECT * INTO STRICT v_cursor FROM events_cursor FOR UPDATE;
    RETURN v_cursor;
END
$$;

-- Makes events of the history that the caller has not seen: at most p_rows rows behind p_after
-- (NULL: behind the low water), and those of p_holes, numbers that it missed before. An existing
-- event stays as it is. p_low_water: up to here the caller found every transaction over and copied.
-- p_floor: the last event that it knows of.
--
-- An id is above every id of this database, above p_floor, and of this millisecond. A restored
-- database or a promoted replica therefore gives no id a second time that its clients know already.
--
-- Both OFFSET 0 keep the planner from a plan that reads all events to find the missing ones.
CREATE FUNCTION events_relay(
    p_incarnation BIGINT, p_low_water BIGINT, p_after BIGINT, p_holes BIGINT[], p_rows INTEGER,
    p_floor BIGINT, p_endpoints TEXT[],
    OUT o_after BIGINT, OUT o_seen BIGINT[], OUT o_made BIGINT, OUT o_low_water BIGINT,
    OUT o_last_event_id BIGINT)
LANGUAGE plpgsql AS $$
DECLARE
    v_cursor events_cursor%ROWTYPE;
    v_base   BIGINT;
BEGIN
    v_cursor := events_fence(p_incarnation);
    o_low_water := GREATEST(v_cursor.low_water, p_low_water);
    o_after := COALESCE(p_after, o_low_water);
    v_base := GREATEST(v_cursor.last_event_id, p_floor,
                       (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20);
    WITH seen AS MATERIALIZED (
        (SELECT history_id, req_id, states, at FROM transfer_history
          WHERE history_id = ANY (p_holes))
        UNION ALL
        (SELECT history_id, req_id, states, at FROM transfer_history WHERE history_id > o_after
          ORDER BY history_id LIMIT p_rows)
    ), fresh AS (
        SELECT s.*, t.user_id, row_number() OVER (ORDER BY s.history_id) AS place
          FROM seen s
         CROSS JOIN LATERAL (
               SELECT user_id FROM transfers_tb WHERE req_id = s.req_id OFFSET 0) AS t
         WHERE NOT EXISTS (SELECT FROM events_tb e WHERE e.history_id = s.history_id OFFSET 0)
    ), made AS (
        INSERT INTO events_tb (event_id, history_id, req_id, user_id, states, at)
        SELECT v_base + place, history_id, req_id, user_id, states, at FROM fresh
        RETURNING event_id, req_id, states, at
    ), queued AS (
        INSERT INTO webhook_deliveries (endpoint, event_id, req_id, states, at, next_at)
        SELECT endpoint, m.event_id, m.req_id, m.states, m.at,
               CASE WHEN row_number() OVER (PARTITION BY endpoint, m.req_id
                                            ORDER BY m.event_id) = 1
                     AND NOT EXISTS (SELECT FROM webhook_deliveries d
                                      WHERE d.endpoint = e.endpoint AND d.req_id = m.req_id
                                        AND d.status = 1 OFFSET 0)
                    THEN clock_timestamp() END
          FROM made m CROSS JOIN unnest(p_endpoints) AS e (endpoint)
    )
    SELECT (SELECT array_agg(history_id) FROM seen), count(*),
           COALESCE(max(event_id), v_cursor.last_event_id)
      INTO o_seen, o_made, o_last_event_id FROM made;
    o_seen := COALESCE(o_seen, '{}');
    IF (o_low_water, o_last_event_id)
       IS DISTINCT FROM (v_cursor.low_water, v_cursor.last_event_id) THEN
        UPDATE events_cursor SET low_water = o_low_water, last_event_id = o_last_event_id;
    END IF;
END
$$;

-- Deletes events older than p_keep_ms, and dead letters after p_dead_keep_ms. A delivery that ended
-- goes when its event and its own time are that old; a time of the future does not count. A
-- delivery still open after p_dead_keep_ms ends as a dead letter, so that a lost endpoint fills no
-- disk.
--
-- The age of an event is lived time (see watermark_clock). At most p_rows of each kind are changed;
-- returns the highest of these counts. The fence is held meanwhile, so every statement uses an
-- index.
--
-- An event above the low water stays, and so do all later ones: its history would be copied again.
-- Up to kept_after all events are gone, and behind it none.
CREATE FUNCTION events_purge(
    p_incarnation BIGINT, p_lived_ms BIGINT, p_keep_ms BIGINT, p_dead_keep_ms BIGINT,
    p_rows INTEGER)
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
    -- 16 sightings in the shorter keep time, and 16 in the longer one, are fine enough and a bound
    -- on the table.
    SELECT max(seen_ms), max(seen_ms) FILTER (WHERE coarse)
      INTO v_fine, v_coarse FROM events_sightings;
    v_coarse := CASE WHEN v_now - v_coarse < GREATEST(p_keep_ms, p_dead_keep_ms) / 16
                     THEN v_coarse END;
    IF v_coarse IS NULL OR v_now - v_fine >= LEAST(p_keep_ms, p_dead_keep_ms) / 16 THEN
        INSERT INTO events_sightings SELECT v_cursor.last_event_id, v_now, v_coarse IS NULL
         WHERE v_cursor.last_event_id > (SELECT COALESCE(max(event_id), 0) FROM events_sightings);
    END IF;
    -- Events below these ids are older than p_keep_ms and p_dead_keep_ms.
    SELECT COALESCE(max(event_id) FILTER (WHERE seen_ms <= v_now - p_keep_ms) + 1, 0),
           COALESCE(max(event_id) FILTER (WHERE seen_ms <= v_now - p_dead_keep_ms) + 1, 0)
      INTO v_old, v_late FROM events_sightings;
    DELETE FROM events_sightings
     WHERE event_id < LEAST(v_old, v_late) - 1
        OR NOT coarse AND event_id < GREATEST(v_old, v_late) - 1;
    -- By history_id: a plan by event_id would read all events to find none.
    v_end := LEAST(v_old, (SELECT min(event_id) FROM (
        SELECT event_id FROM events_tb WHERE history_id > v_cursor.low_water
         ORDER BY history_id OFFSET 0) AS above));
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
        SELECT endpoint, array_agg(DISTINCT req_id) AS req_ids, count(*) AS letters
          FROM dead GROUP BY endpoint
    LOOP
        PERFORM webhook_line_up(v_letter.endpoint, v_letter.req_ids);
        v_changed := v_changed + v_letter.letters;
    END LOOP;
    v_most := GREATEST(v_most, v_changed);
    FOR v_status IN 2..3 LOOP
        -- In a variable: an index cannot look up the value of a volatile function.
        v_before := clock_timestamp()
            - CASE v_status WHEN 2 THEN p_keep_ms ELSE p_dead_keep_ms END
              * interval '1 millisecond';
        v_end := CASE v_status WHEN 2 THEN v_old ELSE v_late END;
        DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at < v_before
               AND event_id < v_end
             ORDER BY ended_at LIMIT p_rows));
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        v_most := GREATEST(v_most, v_changed);
        v_before := clock_timestamp();
        DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at > v_before
               AND event_id < v_end
             ORDER BY ended_at LIMIT p_rows));
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        v_most := GREATEST(v_most, v_changed);
    END LOOP;
    RETURN GREATEST(v_most, journal_forget(v_now, p_keep_ms, p_rows));
END
$$;
