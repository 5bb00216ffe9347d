-- Rows of requests, and their nonces.

-- The body of a create: requests, each with its gas limit if it is prepared.
CREATE FUNCTION txm.requests(p_requests JSONB)
RETURNS TABLE (place BIGINT, request_id TEXT, business_key TEXT, fingerprint TEXT, gas BIGINT,
               deadline_ms BIGINT, payload JSONB) LANGUAGE sql STABLE ROWS 100 AS $$
    SELECT r.place, r.body ->> 'request_id', r.body ->> 'business_key', r.body ->> 'fingerprint',
           (r.body ->> 'gas')::bigint, (r.body ->> 'deadline_ms')::bigint, r.body -> 'payload'
      FROM jsonb_array_elements(p_requests) WITH ORDINALITY r (body, place)
$$;

-- A moment from a client's deadline.
CREATE FUNCTION txm.moment(p_ms BIGINT) RETURNS TIMESTAMPTZ LANGUAGE sql STABLE
    AS 'SELECT to_timestamp(p_ms / 1000.0)';

-- The history and the first event of rows that are new.
CREATE FUNCTION txm.begun(p_ids UUID[], p_node TEXT, p_token BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    my_xid BIGINT := pg_current_xact_id()::text::bigint;
    my_epoch BIGINT := (SELECT epoch FROM txm.settings);
BEGIN
    INSERT INTO txm.tx_history (tx_id, version, token, at, attempts, from_state, state, sub_state,
                                code, node)
    SELECT t.tx_id, t.version, p_token, t.updated_at, 0, NULL, t.state, t.sub_state, t.code, p_node
      FROM unnest(p_ids) WITH ORDINALITY i (id, place)
      JOIN LATERAL (SELECT * FROM txm.managed_tx WHERE tx_id = i.id OFFSET 0) t ON TRUE
     ORDER BY i.place;
    INSERT INTO txm.tx_events (epoch, xid, at, seq, new_fork, tx_id, kind, body)
    SELECT my_epoch, my_xid, t.updated_at, 1, FALSE, t.tx_id, 'state', txm.event_json(t)
      FROM unnest(p_ids) WITH ORDINALITY i (id, place)
      JOIN LATERAL (SELECT * FROM txm.managed_tx WHERE tx_id = i.id OFFSET 0) t ON TRUE
     ORDER BY i.place;
END
$$;

-- Locks the cursor, behind the lease, and raises it to the floor. What that passes over is a jump.
CREATE FUNCTION txm.cursor_from(p_signer TEXT, p_token BIGINT, p_floor BIGINT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
DECLARE
    upcoming BIGINT;
BEGIN
    SELECT c.next_nonce INTO STRICT upcoming FROM txm.signer_nonce_cursor c
     WHERE c.signer = p_signer FOR UPDATE;
    IF p_floor > upcoming THEN
        INSERT INTO txm.nonce_jumps VALUES (p_signer, upcoming, p_floor, p_token, txm.clock());
        upcoming := p_floor;
    END IF;
    RETURN upcoming;
END
$$;

-- One try of a create. It fails as a whole with unique_violation if another process stores one of
-- its keys meanwhile. A request with a deadline that has passed gets no nonce: its row is stored as
-- FAILED EXPIRED, and answered as known, since its owner has nothing to do for it.
-- Planned anew for each batch: a plan that was made for an empty table would look a key up among
-- all rows of the signer, until PostgreSQL analyzes the table.
CREATE FUNCTION txm.create_once(p_signer TEXT, p_node TEXT, p_token BIGINT, p_floor BIGINT,
                                p_requests JSONB)
RETURNS SETOF txm.made LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    o txm.made;
    now TIMESTAMPTZ := txm.clock();
    r RECORD;
    places BIGINT[] := '{}';
    ids UUID[] := '{}';
    keys TEXT[] := '{}';
    businesses TEXT[] := '{}';
    nonces BIGINT[] := '{}';
    upcoming BIGINT;
    at INTEGER;
    is_late BOOLEAN;
    twin txm.managed_tx;
BEGIN
    -- Each key is looked up alone: a join would read the whole table where it has no statistics.
    FOR r IN
        SELECT q.*, row.t AS known, other.tx_id AS other
          FROM txm.requests(p_requests) q
          LEFT JOIN LATERAL (
              SELECT t FROM txm.managed_tx t
               WHERE t.signer = p_signer AND t.request_id = q.request_id OFFSET 0) row ON TRUE
          LEFT JOIN LATERAL (SELECT t.tx_id FROM txm.managed_tx t
                              WHERE t.business_key = q.business_key OFFSET 0) other ON TRUE
         ORDER BY q.place
    LOOP
        o.place := r.place;
        at := array_position(keys, r.request_id);
        IF (r.known).tx_id IS NOT NULL THEN
            o.fields := txm.differences(r.known, r.fingerprint, r.business_key, r.payload);
            o.id := (r.known).tx_id;
            o.outcome := CASE WHEN o.fields = '{}' THEN 'known' ELSE 'conflict' END;
        ELSIF at IS NOT NULL THEN
            -- A twin within this batch: it gets the row of the first one.
            SELECT (p_requests -> (places[at] - 1)::int) ->> 'fingerprint',
                   (p_requests -> (places[at] - 1)::int) ->> 'business_key',
                   (p_requests -> (places[at] - 1)::int) -> 'payload'
              INTO twin.fingerprint, twin.business_key, twin.payload;
            o.fields := txm.differences(twin, r.fingerprint, r.business_key, r.payload);
            o.id := ids[at];
            o.outcome := CASE WHEN o.fields = '{}' THEN 'known' ELSE 'conflict' END;
        ELSIF r.other IS NOT NULL
              OR r.business_key IS NOT NULL AND r.business_key = ANY (businesses) THEN
            o.outcome := 'conflict';
            o.fields := '{businessKey}';
            o.id := NULL;
        ELSE
            PERFORM txm.no_fill(r.request_id);
            is_late := COALESCE(txm.moment(r.deadline_ms) <= now, FALSE);
            o.outcome := CASE WHEN is_late THEN 'known' ELSE 'new' END;
            o.fields := '{}';
            o.id := txm.uuid7(now);
            IF is_late THEN
                nonces := array_append(nonces, NULL);
            ELSE
                IF upcoming IS NULL THEN
                    upcoming := txm.cursor_from(p_signer, p_token, p_floor);
                END IF;
                nonces := array_append(nonces, upcoming);
                upcoming := upcoming + 1;
            END IF;
            places := array_append(places, r.place);
            ids := array_append(ids, o.id);
            keys := array_append(keys, r.request_id);
            businesses := array_append(businesses, r.business_key);
        END IF;
        RETURN NEXT o;
    END LOOP;
    IF ids = '{}' THEN
        RETURN;
    END IF;
    -- By business key: two signers that store the same keys wait in one order.
    INSERT INTO txm.managed_tx
        (tx_id, signer, request_id, business_key, fingerprint, payload, deadline, nonce, gas_limit,
         state, code, version, event_seq, fencing_token, created_at, updated_at, final_at)
    SELECT ids[n.at], p_signer, q.request_id, q.business_key, q.fingerprint, q.payload,
           txm.moment(q.deadline_ms), nonces[n.at],
           CASE WHEN nonces[n.at] IS NOT NULL THEN q.gas END,
           CASE WHEN nonces[n.at] IS NULL THEN -10 ELSE 10 END,
           CASE WHEN nonces[n.at] IS NULL THEN 2 END, 1, 1, p_token, now, now,
           CASE WHEN nonces[n.at] IS NULL THEN now END
      FROM txm.requests(p_requests) q
     CROSS JOIN LATERAL (SELECT array_position(places, q.place) AS at) n
     WHERE n.at IS NOT NULL
     ORDER BY q.business_key, n.at;
    IF upcoming IS NOT NULL THEN
        UPDATE txm.signer_nonce_cursor c
           SET next_nonce = upcoming, fencing_token = p_token, updated_at = now
         WHERE c.signer = p_signer;
    END IF;
    PERFORM txm.begun(ids, p_node, p_token);
END
$$;

-- Refuses the id of a fill, which is not a client's.
CREATE FUNCTION txm.no_fill(p_request TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF p_request ^@ 'fill/' THEN
        RAISE EXCEPTION '% is the id of a fill', p_request USING ERRCODE = 'UB002';
    END IF;
END
$$;

-- Whether a jump has passed over a nonce, and no row has it.
CREATE FUNCTION txm.is_jumped(p_signer TEXT, p_nonce BIGINT) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM txm.nonce_jumps j WHERE j.signer = p_signer
                      AND j.first_nonce <= p_nonce AND p_nonce < j.before_nonce)
       AND NOT EXISTS (SELECT FROM txm.managed_tx t
                        WHERE t.signer = p_signer AND t.nonce = p_nonce)
$$;

-- Fenced: gives nonces that a jump passed over their rows, with the wish to fill. If an operator
-- asks, also the next nonces, up to those that were seen before the rows became an older copy. One
-- row a request, in their order: row, also one that was there; or none: it is no such nonce, or
-- another row has it, and nothing is written. One row alone, suspended: the signer is, no operator
-- has asked, and nothing was done. Of next nonces all are filled, or none.
CREATE FUNCTION txm.fill(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_nonces BIGINT[],
                         p_requests JSONB, p_asked BOOLEAN)
RETURNS TABLE (outcome TEXT, tx TEXT) LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    my_node TEXT := (SELECT node_id FROM txm.nodes WHERE incarnation = p_me);
    is_next BOOLEAN;
    r RECORD;
    t txm.managed_tx;
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    IF NOT p_asked AND txm.is_suspended(p_signer) THEN
        RETURN QUERY SELECT 'suspended', NULL;
        RETURN;
    END IF;
    -- An adoption adds jumps under this lock.
    PERFORM FROM txm.signer_nonce_cursor c WHERE c.signer = p_signer FOR UPDATE;
    FOR r IN SELECT q.*, p_nonces[q.place::int] AS nonce FROM txm.requests(p_requests) q
              ORDER BY q.place LOOP
        SELECT * INTO t FROM txm.managed_tx m
         WHERE m.signer = p_signer AND m.request_id = r.request_id;
        UPDATE txm.signer_nonce_cursor c
           SET next_nonce = r.nonce + 1, fencing_token = p_token, updated_at = now
          FROM txm.signer_suspensions u
         WHERE p_asked AND t.tx_id IS NULL AND c.signer = p_signer AND c.next_nonce = r.nonce
           AND u.signer = p_signer AND u.reason = 'DATABASE_RESTORED'
           AND p_nonces[cardinality(p_nonces)] < u.seen_nonce;
        is_next := FOUND;
        IF t.tx_id IS NULL AND (is_next OR txm.is_jumped(p_signer, r.nonce)) THEN
            INSERT INTO txm.managed_tx
                (tx_id, signer, request_id, fingerprint, payload, nonce, gas_limit, state, wish,
                 version, event_seq, fencing_token, created_at, updated_at)
            VALUES (txm.uuid7(now), p_signer, r.request_id, r.fingerprint, r.payload, r.nonce,
                    r.gas, 10, 2, 1, 1, p_token, now, now)
            RETURNING * INTO t;
            PERFORM txm.begun(ARRAY[t.tx_id], my_node, p_token);
        END IF;
        outcome := CASE WHEN t.tx_id IS NULL THEN 'none' ELSE 'row' END;
        tx := CASE WHEN t.tx_id IS NOT NULL THEN txm.tx_json(t)::text END;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Fenced: gives each new request the next nonce and its row, without a hole. One row a request, in
-- their order: new, known, or conflict with the names of the fields. One row alone, suspended: the
-- signer is, and nothing was done. Without `p_whole` the caller knows a new row by its request, so
-- that only its id and its nonce are read.
CREATE FUNCTION txm.create(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_floor BIGINT,
                           p_requests JSONB, p_whole BOOLEAN DEFAULT TRUE)
RETURNS TABLE (outcome TEXT, fields TEXT[], tx TEXT, id TEXT, nonce BIGINT) LANGUAGE plpgsql AS $$
DECLARE
    my_node TEXT := (SELECT node_id FROM txm.nodes WHERE incarnation = p_me);
    made txm.made[];
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    IF txm.is_suspended(p_signer) THEN
        RETURN QUERY SELECT 'suspended', '{}'::text[], NULL, NULL, NULL::bigint;
        RETURN;
    END IF;
    FOR try IN 1..100 LOOP
        BEGIN
            SELECT array_agg(o ORDER BY o.place) INTO made
              FROM txm.create_once(p_signer, my_node, p_token, p_floor, p_requests) o;
            -- Another statement: the one before does not see its own rows.
            RETURN QUERY
            SELECT o.outcome, o.fields,
                   CASE WHEN t.tx_id IS NOT NULL AND (p_whole OR o.outcome <> 'new')
                        THEN txm.tx_json(t)::text END,
                   t.tx_id::text, t.nonce
              FROM unnest(made) o
              LEFT JOIN LATERAL (SELECT * FROM txm.managed_tx m WHERE m.tx_id = o.id
                                    AND o.outcome <> 'conflict' OFFSET 0) t ON TRUE
             ORDER BY o.place;
            RETURN;
        EXCEPTION WHEN unique_violation THEN
            -- The row of another process is committed now, and the next look finds it.
            CONTINUE;
        END;
    END LOOP;
    RAISE EXCEPTION 'the keys of a create of % are stored by others again and again', p_signer
        USING ERRCODE = 'UB002';
END
$$;

-- Stores a request without a nonce, on any node. Not fenced. Overloaded: it is new, and the signer
-- has so many rows without a nonce. `is_elsewhere`: another process has owned the signer last.
CREATE FUNCTION txm.keep(p_signer TEXT, p_me BIGINT, p_request JSONB, p_most BIGINT)
RETURNS TABLE (outcome TEXT, fields TEXT[], tx TEXT, is_elsewhere BOOLEAN)
LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    my_node TEXT := (SELECT node_id FROM txm.nodes WHERE incarnation = p_me);
    q RECORD;
    t txm.managed_tx;
BEGIN
    SELECT * INTO STRICT q FROM txm.requests(jsonb_build_array(p_request));
    PERFORM txm.no_fill(q.request_id);
    IF NOT EXISTS (SELECT FROM txm.signers s WHERE s.signer = p_signer) THEN
        RAISE EXCEPTION 'signer % is unknown', p_signer USING ERRCODE = 'UB002';
    END IF;
    IF NOT EXISTS (SELECT FROM txm.managed_tx m
                    WHERE m.signer = p_signer AND m.request_id = q.request_id)
       AND p_most <= (SELECT count(*) FROM (
               SELECT FROM txm.managed_tx m
                WHERE m.signer = p_signer AND m.nonce IS NULL AND m.final_at IS NULL
                LIMIT p_most) waiting) THEN
        RETURN QUERY SELECT 'overloaded', '{}'::text[], NULL, FALSE;
        RETURN;
    END IF;
    INSERT INTO txm.managed_tx
        (tx_id, signer, request_id, business_key, fingerprint, payload, deadline, state, version,
         event_seq, fencing_token, created_at, updated_at)
    VALUES (txm.uuid7(now), p_signer, q.request_id, q.business_key, q.fingerprint, q.payload,
            txm.moment(q.deadline_ms), 0, 1, 1, 0, now, now)
        ON CONFLICT DO NOTHING RETURNING * INTO t;
    IF FOUND THEN
        PERFORM txm.begun(ARRAY[t.tx_id], my_node, 0);
        RETURN QUERY SELECT 'new', '{}'::text[], txm.tx_json(t)::text, EXISTS (
            SELECT FROM txm.signer_lease l
             WHERE l.signer = p_signer AND l.owner_incarnation <> p_me);
        RETURN;
    END IF;
    SELECT * INTO t FROM txm.managed_tx m
     WHERE m.signer = p_signer AND m.request_id = q.request_id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'conflict', '{businessKey}'::text[], NULL, FALSE;
        RETURN;
    END IF;
    fields := txm.differences(t, q.fingerprint, q.business_key, q.payload);
    RETURN QUERY SELECT CASE WHEN fields = '{}' THEN 'known' ELSE 'conflict' END, fields,
                        CASE WHEN fields = '{}' THEN txm.tx_json(t)::text END, FALSE;
END
$$;

-- Fenced: gives prepared rows without a nonce theirs, in their order. A row with another version,
-- or with a deadline that has passed, is passed over. One NULL alone: the signer is suspended, and
-- nothing was done.
CREATE FUNCTION txm.number(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_floor BIGINT,
                           p_ids UUID[], p_versions BIGINT[], p_gas BIGINT[])
RETURNS SETOF TEXT LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    my_node TEXT := (SELECT node_id FROM txm.nodes WHERE incarnation = p_me);
    my_xid BIGINT := pg_current_xact_id()::text::bigint;
    my_epoch BIGINT := (SELECT epoch FROM txm.settings);
    r RECORD;
    t txm.managed_tx;
    upcoming BIGINT;
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    IF txm.is_suspended(p_signer) THEN
        RETURN NEXT NULL;
        RETURN;
    END IF;
    FOR r IN SELECT * FROM unnest(p_ids, p_versions, p_gas) i (id, version, gas) LOOP
        PERFORM 1 FROM txm.managed_tx m
          WHERE m.tx_id = r.id AND m.signer = p_signer AND m.version = r.version AND m.state = 0
            AND (m.deadline IS NULL OR m.deadline > now);
        CONTINUE WHEN NOT FOUND;
        IF upcoming IS NULL THEN
            upcoming := txm.cursor_from(p_signer, p_token, p_floor);
        END IF;
        UPDATE txm.managed_tx m
           SET nonce = upcoming, gas_limit = r.gas, state = 10, sub_state = NULL,
               version = m.version + 1, event_seq = m.event_seq + 1, fencing_token = p_token,
               updated_at = now
         WHERE m.tx_id = r.id RETURNING m.* INTO STRICT t;
        upcoming := upcoming + 1;
        INSERT INTO txm.tx_history (tx_id, version, token, at, attempts, from_state, state,
                                    sub_state, code, node)
        VALUES (t.tx_id, t.version, p_token, now, 0, 0, t.state, t.sub_state, t.code, my_node);
        INSERT INTO txm.tx_events (epoch, xid, at, seq, new_fork, tx_id, kind, body)
        VALUES (my_epoch, my_xid, now, t.event_seq, FALSE, t.tx_id, 'state', txm.event_json(t));
        RETURN NEXT txm.tx_json(t)::text;
    END LOOP;
    IF upcoming IS NOT NULL THEN
        UPDATE txm.signer_nonce_cursor c
           SET next_nonce = upcoming, fencing_token = p_token, updated_at = now
         WHERE c.signer = p_signer;
    END IF;
END
$$;
