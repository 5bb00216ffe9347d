-- Events: the entries of the journal, as users see them. An id is drawn from one counter of the
-- incarnation when a flight is put together, so the ids of a shard rise with its flights.
--
-- No plan here may read a whole table: the statistics of a table say nothing of its newest rows.

-- The row of each shard that was its last one at an event: the greatest event_first at or below the
-- id. If no such row is kept, the first one that is kept.
CREATE FUNCTION journal_at(p_event BIGINT)
RETURNS TABLE (shard INTEGER, flight BIGINT, incarnation BIGINT, event_first BIGINT,
               event_count INTEGER, open_from BIGINT)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_shard  INTEGER;
    v_high   BIGINT;
    v_low    BIGINT;
    v_middle BIGINT;
BEGIN
    FOR v_shard, v_high IN SELECT l.shard, l.flight FROM journal_last l LOOP
        SELECT min(j.flight) INTO v_low FROM journal_tb j WHERE j.shard = v_shard;
        -- Flights have no gaps, and event_first never falls.
        WHILE v_low < v_high LOOP
            v_middle := (v_low + v_high + 1) / 2;
            PERFORM FROM journal_tb j
              WHERE j.shard = v_shard AND j.flight = v_middle AND j.event_first <= p_event;
            IF FOUND THEN
                v_low := v_middle;
            ELSE
                v_high := v_middle - 1;
            END IF;
        END LOOP;
        RETURN QUERY SELECT j.shard, j.flight, j.incarnation, j.event_first, j.event_count,
                            j.open_from
                       FROM journal_tb j WHERE j.shard = v_shard AND j.flight = v_low;
    END LOOP;
END
$$;

-- Whether every event after p_event can be sent to a user of this shard, and the lowest order
-- number of the transfers that a worker has moved since.
--
-- The journal must have the event: an id of a lost database, or of a row that is deleted, is not
-- there. A row without an event stands for the last one before it, and 0 for the time before the
-- first one. After an event of an earlier incarnation, the user may have had another shard: then no
-- shard may lack a row since, and the number is that of all shards.
CREATE FUNCTION events_position(
    p_shard INTEGER, p_event BIGINT, OUT o_known BOOLEAN, OUT o_open_from BIGINT)
LANGUAGE sql STABLE AS $$
    WITH at AS (
        SELECT j.*, p_event < event_first + event_count
                    AND p_event >= event_first - CASE event_count WHEN 0 THEN 1 ELSE 0 END AS has
          FROM journal_at(p_event) j
    )
    SELECT bool_or(own) OR bool_or(has) AND bool_and(flight = 1 OR event_first <= p_event + 1),
           COALESCE(min(open_from) FILTER (WHERE own), min(open_from))
      FROM (SELECT *, has AND shard = p_shard
                      AND incarnation = (SELECT incarnation FROM engine_state) AS own
              FROM at) AS rows
$$;

-- The first events of a user after p_event, each with its transfer. The caller has asked for
-- events_position.
CREATE FUNCTION events_after(p_user BIGINT, p_event BIGINT, p_open_from BIGINT, p_rows INTEGER)
RETURNS TABLE (event_id BIGINT, order_number BIGINT)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY SELECT e.event_id, e.order_number FROM transfer_events e
                  WHERE e.user_id = p_user AND e.order_number >= p_open_from
                    AND e.event_id > p_event
                  ORDER BY e.event_id LIMIT p_rows;
END
$$;

-- The first events of a user's recharges after p_event.
CREATE FUNCTION recharge_events_after(p_user BIGINT, p_event BIGINT, p_rows INTEGER)
RETURNS TABLE (event_id BIGINT)
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY SELECT e.event_id FROM recharge_events e
                  WHERE e.user_id = p_user AND e.event_id > p_event
                  ORDER BY e.event_id LIMIT p_rows;
END
$$;

-- Deletes rows of the journal after p_keep_ms (see journal_trim), accepted deliveries after
-- p_keep_ms, and dead letters after p_dead_keep_ms. A delivery goes when its event and its own time
-- are that old; a time of the future does not count. A delivery still open after p_dead_keep_ms
-- ends as a dead letter, so that a lost endpoint fills no disk.
--
-- The age of an event is lived time (see watermark_clock). At most p_rows of each kind are changed;
-- returns the highest of these counts. The fence is held meanwhile, so every statement uses an
-- index.
--
-- The last 1,000 rows of a shard stay at any age: a process compares a new connection with rows
-- that it has written, and a start with those that are noted beside the log. If the others have
-- more than p_bytes_max, the oldest ones are deleted before p_keep_ms. Returns also how many rows
-- of one shard were deleted, and the bytes of those that are left.
CREATE FUNCTION events_purge(
    p_incarnation BIGINT, p_lived_ms BIGINT, p_keep_ms BIGINT, p_dead_keep_ms BIGINT,
    p_rows INTEGER, p_bytes_max BIGINT, OUT o_changed BIGINT, OUT o_trimmed BIGINT,
    OUT o_bytes BIGINT)
LANGUAGE plpgsql AS $$
DECLARE
    c_spare   CONSTANT BIGINT := 1000;
    v_now     BIGINT;
    v_fine    BIGINT;
    v_coarse  BIGINT;
    v_old     BIGINT;
    v_late    BIGINT;
    v_end     BIGINT;
    v_changed BIGINT;
    v_before  TIMESTAMPTZ;
    v_letter  RECORD;
BEGIN
    PERFORM webhook_fence(p_incarnation);
    v_now := watermark_lived(p_incarnation, p_lived_ms);
    -- 16 sightings in the shorter keep time, and 16 in the longer one, are fine enough and a bound
    -- on the table.
    SELECT max(seen_ms), max(seen_ms) FILTER (WHERE coarse)
      INTO v_fine, v_coarse FROM events_sightings;
    v_coarse := CASE WHEN v_now - v_coarse < GREATEST(p_keep_ms, p_dead_keep_ms) / 16
                     THEN v_coarse END;
    IF v_coarse IS NULL OR v_now - v_fine >= LEAST(p_keep_ms, p_dead_keep_ms) / 16 THEN
        INSERT INTO events_sightings
        SELECT last, v_now, v_coarse IS NULL
          FROM (SELECT GREATEST((SELECT max(event_first + event_count - 1) FROM journal_last),
                                (SELECT max(event_id) FROM transaction_events)) AS last) AS l
         WHERE last > (SELECT COALESCE(max(event_id), 0) FROM events_sightings);
    END IF;
    -- Events below these ids are older than p_keep_ms and p_dead_keep_ms.
    SELECT COALESCE(max(event_id) FILTER (WHERE seen_ms <= v_now - p_keep_ms) + 1, 0),
           COALESCE(max(event_id) FILTER (WHERE seen_ms <= v_now - p_dead_keep_ms) + 1, 0)
      INTO v_old, v_late FROM events_sightings;
    DELETE FROM events_sightings
     WHERE event_id < LEAST(v_old, v_late) - 1
        OR NOT coarse AND event_id < GREATEST(v_old, v_late) - 1;
    o_trimmed := journal_trim(
        CASE WHEN journal_bytes(c_spare) > p_bytes_max
             THEN GREATEST(v_old, v_late, journal_young(c_spare, p_rows)) ELSE v_old END,
        v_late, c_spare, p_rows);
    o_changed := o_trimmed;
    o_bytes := journal_bytes(c_spare);
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
    o_changed := GREATEST(o_changed, v_changed);
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
        o_changed := GREATEST(o_changed, v_changed);
        v_before := clock_timestamp();
        DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at > v_before
               AND event_id < v_end
             ORDER BY ended_at LIMIT p_rows));
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        o_changed := GREATEST(o_changed, v_changed);
    END LOOP;
END
$$;
