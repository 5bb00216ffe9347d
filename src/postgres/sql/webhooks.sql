-- Webhook deliveries: one event on its way to one endpoint. The deliveries of one transfer go one
-- after the other. Those of a transaction are written with its end (transaction_tell).
--
-- Rows are found first (OFFSET 0, or a window) and then changed by their ctid, for which there is
-- one plan. Every function here holds webhook_fence, or is called under it, so no other transaction
-- moves the rows in between.

-- The first statement of every transaction that writes deliveries. A superseded process gets UB001.
-- The others go one after the other.
CREATE FUNCTION webhook_fence(p_incarnation BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
END
$$;

-- Puts the cursor where an incarnation begins, before its first flight. Without an endpoint there
-- is no cursor. With the first one it is at the last flight of each shard: earlier events are not
-- delivered. Later it stays, and begins before the first flight of a new shard.
CREATE FUNCTION webhook_begin(p_incarnation BIGINT, p_endpoints TEXT[]) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM webhook_fence(p_incarnation);
    IF cardinality(p_endpoints) = 0 THEN
        DELETE FROM webhook_cursor;
    ELSIF EXISTS (SELECT FROM webhook_cursor) THEN
        INSERT INTO webhook_cursor SELECT shard, 0 FROM journal_last ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO webhook_cursor SELECT shard, flight FROM journal_last;
    END IF;
END
$$;

-- Makes deliveries of the events of flights, and moves the cursor of each shard from p_from to
-- p_until. p_states: arrays as text. p_recharges: the subject of the event of a recharge, NULL for
-- one of a transfer. UB004: the cursor is elsewhere. Then an earlier call was committed after its
-- caller had given it up, and nothing is done. Returns the number of events that have a subject.
CREATE FUNCTION webhook_collect(
    p_incarnation BIGINT, p_endpoints TEXT[], p_shards INTEGER[], p_from BIGINT[],
    p_until BIGINT[], p_event_ids BIGINT[], p_order_numbers BIGINT[], p_states TEXT[],
    p_at TIMESTAMPTZ[], p_recharges UUID[])
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_moved BIGINT;
    v_found BIGINT;
BEGIN
    PERFORM webhook_fence(p_incarnation);
    UPDATE webhook_cursor c SET flight = m.until
      FROM unnest(p_shards, p_from, p_until) AS m (shard, before, until)
     WHERE c.shard = m.shard AND c.flight = m.before;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    IF v_moved <> cardinality(p_shards) THEN
        RAISE EXCEPTION 'the cursor of the webhooks has been moved by another call'
            USING ERRCODE = 'UB004';
    END IF;
    WITH found AS MATERIALIZED (
        SELECT m.event_id, t.req_id, m.states::smallint[] AS states, m.at,
               CASE WHEN m.recharge IS NULL THEN 1 ELSE 3 END::smallint AS kind
          FROM unnest(p_event_ids, p_order_numbers, p_states, p_at, p_recharges)
               AS m (event_id, order_number, states, at, recharge)
         CROSS JOIN LATERAL (
               SELECT req_id FROM transfers_tb
                WHERE m.recharge IS NULL AND order_number = m.order_number
                UNION ALL
               SELECT m.recharge WHERE m.recharge IS NOT NULL OFFSET 0) AS t
    ), queued AS (
        INSERT INTO webhook_deliveries (endpoint, event_id, req_id, states, at, kind, next_at)
        SELECT endpoint, m.event_id, m.req_id, m.states, m.at, m.kind,
               CASE WHEN row_number() OVER (PARTITION BY endpoint, m.req_id
                                            ORDER BY m.event_id) = 1
                     AND NOT EXISTS (SELECT FROM webhook_deliveries d
                                      WHERE d.endpoint = e.endpoint AND d.req_id = m.req_id
                                        AND d.status = 1 OFFSET 0)
                    THEN clock_timestamp() END
          FROM found m CROSS JOIN unnest(p_endpoints) AS e (endpoint)
    )
    SELECT count(*) INTO v_found FROM found;
    RETURN v_found;
END
$$;

-- For each of these transfers: its first open delivery is due now, and its later ones wait for it.
CREATE FUNCTION webhook_line_up(p_endpoint TEXT, p_req_ids UUID[]) RETURNS VOID
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
    v_req_ids UUID[];
    v_dead    BIGINT[];
BEGIN
    PERFORM webhook_fence(p_incarnation);
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
    PERFORM webhook_fence(p_incarnation);
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
