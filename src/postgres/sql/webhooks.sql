-- Webhook deliveries: one event on its way to one endpoint. The deliveries of one transfer go one
-- after the other.
--
-- Rows are found first (OFFSET 0, or a window) and then changed by their ctid, for which there is
-- one plan. Every function here holds the fence of the events, or is called under it, so no other
-- transaction moves the rows in between.

-- For each of these transfers: its first open delivery is due now, and its later ones wait for it.
CREATE FUNCTION webhook_line_up(p_endpoint TEXT, p_req_ids VARCHAR[]) RETURNS VOID
LANGUAGE sql AS $$
    UPDATE webhook_deliveries d
       SET next_at = CASE WHEN line.is_first THEN clock_timestamp() END
      FROM unnest(p_req_ids) AS r (req_id)
     CROSS JOIN LATERAL (
           SELECT ctid, row_number() OVER (ORDER BY event_id) = 1 AS is_first
             FROM webhook_deliveries
            WHERE endpoint = p_endpoint AND status = 1 AND req_id = r.req_id) AS line
     WHERE d.ctid = line.ctid AND (d.next_at IS NULL) = line.is_first
$$;

-- Records one try of each of these deliveries. p_errors: the cause of the failure, NULL for a
-- success. p_delays_ms: the time until the next try. After p_attempts_max tries a delivery is a
-- dead letter, and the later ones of its transfer go on. Returns the dead letters.
CREATE FUNCTION webhook_note(
    p_incarnation BIGINT, p_endpoint TEXT, p_event_ids BIGINT[], p_errors TEXT[],
    p_delays_ms BIGINT[], p_attempts_max INTEGER)
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
               next_at = CASE WHEN n.status = 1
                              THEN clock_timestamp() + make_interval(secs => t.delay_ms / 1000.0)
                         END
          FROM unnest(p_event_ids, p_errors, p_delays_ms) AS t (event_id, error, delay_ms)
         CROSS JOIN LATERAL (
               SELECT ctid, CASE WHEN t.error IS NULL THEN 2
                                 WHEN attempts + 1 < p_attempts_max THEN 1
                                 ELSE 3 END::smallint AS status
                 FROM webhook_deliveries
                WHERE endpoint = p_endpoint AND event_id = t.event_id AND ended_at IS NULL
               OFFSET 0) AS n
         WHERE d.ctid = n.ctid
        RETURNING d.event_id, d.req_id, d.status
    )
    SELECT array_agg(DISTINCT req_id), array_agg(event_id) FILTER (WHERE status = 3)
      INTO v_req_ids, v_dead FROM noted;
    PERFORM webhook_line_up(p_endpoint, v_req_ids);
    RETURN COALESCE(v_dead, '{}');
END
$$;

-- Makes the dead letters of an event deliveries again, each with a row in admin_audit. Returns the
-- number of endpoints.
CREATE FUNCTION webhook_resend(
    p_incarnation BIGINT, p_event_id BIGINT, p_actor TEXT, p_reason TEXT)
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_letter RECORD;
    v_count  BIGINT := 0;
BEGIN
    PERFORM events_fence(p_incarnation);
    FOR v_letter IN
        UPDATE webhook_deliveries SET status = 1, attempts = 0, ended_at = NULL
         WHERE event_id = p_event_id AND status = 3 RETURNING endpoint, req_id
    LOOP
        PERFORM webhook_line_up(v_letter.endpoint, ARRAY[v_letter.req_id]);
        INSERT INTO admin_audit (actor, action, subject, detail, reason)
        VALUES (p_actor, 'webhook resend', p_event_id::text, v_letter.endpoint, p_reason);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END
$$;
