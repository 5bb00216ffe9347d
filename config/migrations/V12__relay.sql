-- ubscore, version 12: what is new is found by its key.
--
-- As in version 9 but for two OFFSET 0: without them the planner reads every event there is, each time, to find those that
-- are not there yet, and every delivery that is open to find the first of its transfer.
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
