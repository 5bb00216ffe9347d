-- ubscore, version 12: what is new is found by its key.

-- While no delivery is open, as is usual, the planner finds one index of open ones as good as another, and one order of a join
-- as another; and so it looked for one transfer's among all of them, once an endpoint was gone. Constraints keep it the same
-- whether one is open by its status or by its ended_at, and that only open ones have a next_at: each index says it in another
-- way now, so that a statement means one of them. And what is to be changed is found first (OFFSET 0, or a window), and then
-- taken by its ctid, for which there is one plan; whoever changes deliveries holds the fence, so nobody moves them meanwhile.
DROP INDEX webhook_deliveries_due;
DROP INDEX webhook_deliveries_open;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_open ON webhook_deliveries (event_id) WHERE ended_at IS NULL;

-- As in version 9 but for two OFFSET 0: without them the planner reads every event there is, each time, to find those that
-- are not there yet.
CREATE OR REPLACE FUNCTION events_relay(
    p_incarnation BIGINT, p_low_water BIGINT, p_after BIGINT, p_holes BIGINT[], p_rows INTEGER, p_floor BIGINT,
    p_endpoints TEXT[],
    OUT o_after BIGINT, OUT o_seen BIGINT[], OUT o_made BIGINT, OUT o_low_water BIGINT, OUT o_last_event_id BIGINT)
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
        (SELECT history_id, req_id, states, at FROM transfer_history WHERE history_id = ANY (p_holes))
        UNION ALL
        (SELECT history_id, req_id, states, at FROM transfer_history WHERE history_id > o_after
          ORDER BY history_id LIMIT p_rows)
    ), fresh AS (
        SELECT s.*, t.user_id, row_number() OVER (ORDER BY s.history_id) AS place
          FROM seen s
         CROSS JOIN LATERAL (SELECT user_id FROM transfers_tb WHERE req_id = s.req_id OFFSET 0) AS t
         WHERE NOT EXISTS (SELECT FROM events_tb e WHERE e.history_id = s.history_id OFFSET 0)
    ), made AS (
        INSERT INTO events_tb (event_id, history_id, req_id, user_id, states, at)
        SELECT v_base + place, history_id, req_id, user_id, states, at FROM fresh
        RETURNING event_id, req_id, states, at
    ), queued AS (
        INSERT INTO webhook_deliveries (endpoint, event_id, req_id, states, at, next_at)
        SELECT endpoint, m.event_id, m.req_id, m.states, m.at,
               CASE WHEN row_number() OVER (PARTITION BY endpoint, m.req_id ORDER BY m.event_id) = 1
                     AND NOT EXISTS (SELECT FROM webhook_deliveries d
                                      WHERE d.endpoint = e.endpoint AND d.req_id = m.req_id AND d.status = 1 OFFSET 0)
                    THEN clock_timestamp() END
          FROM made m CROSS JOIN unnest(p_endpoints) AS e (endpoint)
    )
    SELECT (SELECT array_agg(history_id) FROM seen), count(*), COALESCE(max(event_id), v_cursor.last_event_id)
      INTO o_seen, o_made, o_last_event_id FROM made;
    o_seen := COALESCE(o_seen, '{}');
    IF (o_low_water, o_last_event_id) IS DISTINCT FROM (v_cursor.low_water, v_cursor.last_event_id) THEN
        UPDATE events_cursor SET low_water = o_low_water, last_event_id = o_last_event_id;
    END IF;
END
$$;

-- As in version 9 but for the ctids and the index of all that are open.
CREATE OR REPLACE FUNCTION events_purge(
    p_incarnation BIGINT, p_keep_s DOUBLE PRECISION, p_dead_keep_s DOUBLE PRECISION, p_rows INTEGER)
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_cursor  events_cursor%ROWTYPE;
    v_end     BIGINT := ((extract(epoch FROM clock_timestamp()) - p_keep_s) * 1000)::bigint << 20;
    v_late    BIGINT := ((extract(epoch FROM clock_timestamp()) - p_dead_keep_s) * 1000)::bigint << 20;
    v_last    BIGINT;
    v_changed BIGINT;
    v_most    BIGINT;
    v_before  TIMESTAMPTZ;
    v_letter  RECORD;
BEGIN
    v_cursor := events_fence(p_incarnation);
    -- By history_id: a plan by event_id would read all events to find that there is none.
    v_end := LEAST(v_end, (SELECT min(event_id) FROM (
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
            - make_interval(secs => CASE v_status WHEN 2 THEN p_keep_s ELSE p_dead_keep_s END);
        DELETE FROM webhook_deliveries WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at < v_before
             ORDER BY ended_at LIMIT p_rows));
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        v_most := GREATEST(v_most, v_changed);
    END LOOP;
    RETURN v_most;
END
$$;

-- As in version 9 but for the ctids.
CREATE OR REPLACE FUNCTION webhook_line_up(p_endpoint TEXT, p_req_ids VARCHAR[]) RETURNS VOID LANGUAGE sql AS $$
    UPDATE webhook_deliveries d SET next_at = CASE WHEN line.is_first THEN clock_timestamp() END
      FROM unnest(p_req_ids) AS r (req_id)
     CROSS JOIN LATERAL (
           SELECT ctid, row_number() OVER (ORDER BY event_id) = 1 AS is_first
             FROM webhook_deliveries WHERE endpoint = p_endpoint AND status = 1 AND req_id = r.req_id) AS line
     WHERE d.ctid = line.ctid AND (d.next_at IS NULL) = line.is_first
$$;

-- As in version 9 but for the ctids.
CREATE OR REPLACE FUNCTION webhook_note(
    p_incarnation BIGINT, p_endpoint TEXT, p_event_ids BIGINT[], p_errors TEXT[], p_delays_ms BIGINT[],
    p_attempts_max INTEGER)
RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    v_req_ids VARCHAR[];
    v_dead    BIGINT[];
BEGIN
    PERFORM events_fence(p_incarnation);
    WITH noted AS (
        UPDATE webhook_deliveries d
           SET attempts = d.attempts + 1, last_error = t.error, status = n.status,
               ended_at = CASE WHEN n.status <> 1 THEN clock_timestamp() END,
               next_at = CASE WHEN n.status = 1 THEN clock_timestamp() + make_interval(secs => t.delay_ms / 1000.0) END
          FROM unnest(p_event_ids, p_errors, p_delays_ms) AS t (event_id, error, delay_ms)
         CROSS JOIN LATERAL (
               SELECT ctid, CASE WHEN t.error IS NULL THEN 2 WHEN attempts + 1 < p_attempts_max THEN 1
                                 ELSE 3 END::smallint AS status
                 FROM webhook_deliveries
                WHERE endpoint = p_endpoint AND event_id = t.event_id AND ended_at IS NULL OFFSET 0) AS n
         WHERE d.ctid = n.ctid
        RETURNING d.event_id, d.req_id, d.status
    )
    SELECT array_agg(DISTINCT req_id), array_agg(event_id) FILTER (WHERE status = 3) INTO v_req_ids, v_dead FROM noted;
    PERFORM webhook_line_up(p_endpoint, v_req_ids);
    RETURN COALESCE(v_dead, '{}');
END
$$;
