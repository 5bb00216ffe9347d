-- ubscore, version 9: what is told to users as it happens.
--
-- Whatever moves a transfer writes its history in the same commit. A relay, the one task of the serving process that does
-- so, copies that history behind the commits into events, in transactions one after the other, and gives each event its id
-- there. So an event is visible only after every event with a smaller id, in whatever order the history was committed; and
-- whoever moves transfers pays for a number in a row and an entry at the end of an index, and waits for nobody.

-- In the order in which rows were written, not in that of their commits. What was there before has no number, and is never
-- an event. No cache: the relay takes the sequence's last value for the last number that anybody has been given.
CREATE SEQUENCE transfer_history_history_id_seq AS BIGINT CACHE 1;
ALTER TABLE transfer_history ADD COLUMN history_id BIGINT;
ALTER SEQUENCE transfer_history_history_id_seq OWNED BY transfer_history.history_id;
ALTER TABLE transfer_history ALTER COLUMN history_id SET DEFAULT nextval('transfer_history_history_id_seq');
CREATE INDEX transfer_history_by_id ON transfer_history (history_id) WHERE history_id IS NOT NULL;

-- One commit of one transfer, as it is told.
CREATE TABLE events_tb (
    event_id   BIGINT PRIMARY KEY,                    -- milliseconds since 1970 << 20 | counter: see events_relay
    history_id BIGINT NOT NULL UNIQUE,
    req_id     VARCHAR(26) NOT NULL,
    user_id    BIGINT NOT NULL,
    states     SMALLINT[] NOT NULL,                   -- in the order passed
    at         TIMESTAMPTZ NOT NULL
);

CREATE INDEX events_by_user ON events_tb (user_id, event_id);

-- One row: how far the relay is. Its lock makes one transaction at a time of whatever writes events or deliveries.
CREATE TABLE events_cursor (
    singleton     BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    low_water     BIGINT NOT NULL DEFAULT 0,          -- every transaction with a history_id up to it is over and copied
    last_event_id BIGINT NOT NULL DEFAULT 0,
    kept_after    BIGINT NOT NULL DEFAULT 0           -- events up to this one have been deleted
) WITH (fillfactor = 50);

INSERT INTO events_cursor DEFAULT VALUES;

-- One event on its way to one endpoint, made in the transaction that makes the event.
CREATE TABLE webhook_deliveries (
    endpoint   TEXT NOT NULL,
    event_id   BIGINT NOT NULL,
    req_id     VARCHAR(26) NOT NULL,
    states     SMALLINT[] NOT NULL,                   -- as in events_tb, which may forget sooner
    at         TIMESTAMPTZ NOT NULL,
    status     SMALLINT NOT NULL DEFAULT 1 CHECK (status IN (1, 2, 3)), -- 1 to be delivered, 2 delivered, 3 dead letter
    attempts   INTEGER NOT NULL DEFAULT 0,
    next_at    TIMESTAMPTZ CHECK (next_at IS NULL OR status = 1), -- NULL while an earlier one of its transfer is tried
    ended_at   TIMESTAMPTZ CHECK ((ended_at IS NULL) = (status = 1)),
    last_error TEXT,
    PRIMARY KEY (endpoint, event_id)
) WITH (fillfactor = 50);

CREATE INDEX webhook_deliveries_by_transfer ON webhook_deliveries (endpoint, req_id, event_id) WHERE status = 1;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint, next_at) WHERE status = 1 AND next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_open ON webhook_deliveries (event_id) WHERE status = 1;
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (event_id, endpoint) WHERE status = 3;
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (status, ended_at) WHERE ended_at IS NOT NULL;

-- The first statement of every transaction that writes events or deliveries: a superseded process gets UB001, and the
-- others go one after the other.
CREATE FUNCTION events_fence(p_incarnation BIGINT) RETURNS events_cursor LANGUAGE plpgsql AS $$
DECLARE
    v_cursor events_cursor%ROWTYPE;
BEGIN
    PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
    SELECT * INTO STRICT v_cursor FROM events_cursor FOR UPDATE;
    RETURN v_cursor;
END
$$;

-- Makes events of the history that the caller has not seen: the rows behind p_after (NULL: behind the low water), p_rows of
-- them at most, and those of p_holes, numbers that it has missed before. What is an event already stays the one it is.
-- p_low_water: as far as the caller has found everything to be over and copied. p_floor: the last event that it knows of.
--
-- An id is above every id that this database has, above p_floor, and of this millisecond: a database that was restored, or a
-- replica that was promoted, does not give an id a second time that its clients know from before.
CREATE FUNCTION events_relay(
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
         WHERE NOT EXISTS (SELECT FROM events_tb e WHERE e.history_id = s.history_id)
    ), made AS (
        INSERT INTO events_tb (event_id, history_id, req_id, user_id, states, at)
        SELECT v_base + place, history_id, req_id, user_id, states, at FROM fresh
        RETURNING event_id, req_id, states, at
    ), queued AS (
        INSERT INTO webhook_deliveries (endpoint, event_id, req_id, states, at, next_at)
        SELECT endpoint, m.event_id, m.req_id, m.states, m.at,
               CASE WHEN row_number() OVER (PARTITION BY endpoint, m.req_id ORDER BY m.event_id) = 1
                     AND NOT EXISTS (SELECT FROM webhook_deliveries d
                                      WHERE d.endpoint = e.endpoint AND d.req_id = m.req_id AND d.status = 1)
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

-- Deletes events older than p_keep_s, and deliveries that ended so long ago; dead letters after p_dead_keep_s. What has not been
-- delivered in p_dead_keep_s is a dead letter, so that an endpoint that is gone does not fill the disk. At most p_rows of each;
-- returns the most that it has changed of one kind. It holds the fence, so every statement here goes by an index.
--
-- An event above the low water stays, or its history would become an event a second time; and so does whatever comes behind
-- it, so that all events up to kept_after are gone, and none behind it.
CREATE FUNCTION events_purge(
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
    WITH old AS (
        SELECT event_id FROM events_tb WHERE event_id < v_end ORDER BY event_id LIMIT p_rows
    ), gone AS (
        DELETE FROM events_tb USING old WHERE events_tb.event_id = old.event_id RETURNING events_tb.event_id
    )
    SELECT max(event_id), count(*) INTO v_last, v_most FROM gone;
    IF v_last IS NOT NULL THEN
        UPDATE events_cursor SET kept_after = v_last;
    END IF;
    v_changed := 0;
    FOR v_letter IN
        WITH late AS (
            SELECT endpoint, event_id FROM webhook_deliveries WHERE status = 1 AND event_id < v_late
             ORDER BY event_id LIMIT p_rows
        ), dead AS (
            UPDATE webhook_deliveries d
               SET status = 3, ended_at = clock_timestamp(), next_at = NULL,
                   last_error = 'not delivered in time' || COALESCE(': ' || d.last_error, '')
              FROM late WHERE d.endpoint = late.endpoint AND d.event_id = late.event_id
            RETURNING d.endpoint, d.req_id
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
        DELETE FROM webhook_deliveries USING (
            SELECT endpoint, event_id FROM webhook_deliveries
             WHERE status = v_status AND ended_at IS NOT NULL AND ended_at < v_before
             ORDER BY ended_at LIMIT p_rows) AS old
         WHERE webhook_deliveries.endpoint = old.endpoint AND webhook_deliveries.event_id = old.event_id;
        GET DIAGNOSTICS v_changed = ROW_COUNT;
        v_most := GREATEST(v_most, v_changed);
    END LOOP;
    RETURN v_most;
END
$$;

-- Of each of these transfers, has the first delivery that has not ended be due, and all others wait for it.
CREATE FUNCTION webhook_line_up(p_endpoint TEXT, p_req_ids VARCHAR[]) RETURNS VOID LANGUAGE sql AS $$
    UPDATE webhook_deliveries d SET next_at = CASE WHEN line.is_first THEN clock_timestamp() END
      FROM (SELECT event_id, row_number() OVER (PARTITION BY req_id ORDER BY event_id) = 1 AS is_first
              FROM webhook_deliveries WHERE endpoint = p_endpoint AND status = 1 AND req_id = ANY (p_req_ids)) AS line
     WHERE d.endpoint = p_endpoint AND d.event_id = line.event_id AND (d.next_at IS NULL) = line.is_first
$$;

-- Writes down one try of each of these deliveries. p_errors: why it failed, NULL where it was taken; p_delays_ms: until the
-- next try. After p_attempts_max tries it is a dead letter, and holds nothing back any more. Returns those that are.
CREATE FUNCTION webhook_note(
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
          JOIN webhook_deliveries o ON o.endpoint = p_endpoint AND o.event_id = t.event_id
         CROSS JOIN LATERAL (SELECT CASE WHEN t.error IS NULL THEN 2 WHEN o.attempts + 1 < p_attempts_max THEN 1
                                         ELSE 3 END::smallint AS status) AS n
         WHERE d.endpoint = p_endpoint AND d.event_id = t.event_id AND d.status = 1
        RETURNING d.event_id, d.req_id, d.status
    )
    SELECT array_agg(DISTINCT req_id), array_agg(event_id) FILTER (WHERE status = 3) INTO v_req_ids, v_dead FROM noted;
    PERFORM webhook_line_up(p_endpoint, v_req_ids);
    RETURN COALESCE(v_dead, '{}');
END
$$;

-- Has a dead letter delivered after all, with an audit row; returns to how many endpoints.
CREATE FUNCTION webhook_resend(p_incarnation BIGINT, p_event_id BIGINT, p_actor TEXT, p_reason TEXT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
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
