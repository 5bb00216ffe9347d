-- Writes that any node may do: signers, suspensions, commands. None is fenced: an owner carries
-- commands out under its token.

CREATE FUNCTION txm.add_signer(p_signer TEXT, p_kind TEXT, p_cursor BIGINT, p_actor TEXT,
                               p_reason TEXT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
BEGIN
    INSERT INTO txm.signers VALUES (p_signer, p_kind, now, p_actor) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    INSERT INTO txm.signer_nonce_cursor VALUES (p_signer, p_cursor, 0, now);
    INSERT INTO txm.audit (at, signer, actor, what, reason)
    VALUES (now, p_signer, p_actor, format('add %s with nonce %s', p_kind, p_cursor), p_reason);
    RETURN TRUE;
END
$$;

-- Whether a suspension says that the rows may be older than the chain.
CREATE FUNCTION txm.may_lack_rows(p_reason TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT p_reason IN ('NONCE_AHEAD', 'NONCE_TAKEN', 'DATABASE_RESTORED', 'DATABASE_OLDER')
$$;

-- Lifts a suspension. Those that more than one operator or a comparison must end stay, with UB002.
CREATE FUNCTION txm.resume(p_signer TEXT, p_reason TEXT, p_actor TEXT, p_why TEXT) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
BEGIN
    IF p_reason = 'OUTFLOW_LIMIT' OR txm.may_lack_rows(p_reason) THEN
        RAISE EXCEPTION '% of % wants two operators', p_reason, p_signer USING ERRCODE = 'UB002';
    END IF;
    RETURN txm.lifted(p_signer, p_reason, p_actor, p_why);
END
$$;

CREATE FUNCTION txm.lifted(p_signer TEXT, p_reason TEXT, p_actor TEXT, p_why TEXT) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
    was_about TEXT;
    coin TEXT;
BEGIN
    DELETE FROM txm.signer_suspensions s WHERE s.signer = p_signer AND s.reason = p_reason
    RETURNING s.about INTO was_about;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    IF p_reason = 'OUTFLOW_LIMIT' THEN
        -- The hour of its asset begins anew: see txm.write.
        coin := substring(was_about FROM '^asset ([^ :]+):');
        UPDATE txm.outflow_minutes m SET units = 0
         WHERE m.signer = p_signer AND m.asset = CASE coin WHEN 'native' THEN '' ELSE coin END
           AND m.minute > txm.clock() - INTERVAL '61 minutes';
    END IF;
    INSERT INTO txm.audit (at, signer, actor, what, reason)
    VALUES (txm.clock(), p_signer, p_actor, 'resume ' || p_reason, p_why);
    RETURN TRUE;
END
$$;

-- Stores a command, and returns its number. Some wait for a second operator. A cancel of a row that
-- has an open one is that one.
CREATE FUNCTION txm.command(p_signer TEXT, p_tx UUID, p_what TEXT, p_body JSONB, p_actor TEXT,
                            p_reason TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    number BIGINT;
    asker TEXT;
BEGIN
    IF p_tx IS NOT NULL AND NOT EXISTS (
        SELECT FROM txm.managed_tx t WHERE t.tx_id = p_tx AND t.signer = p_signer) THEN
        RAISE EXCEPTION 'transaction % is none of %', p_tx, p_signer USING ERRCODE = 'UB002';
    END IF;
    IF p_what = 'cancel' THEN
        -- One open command is enough. The row's lock lets the second of two callers see the first.
        PERFORM FROM txm.managed_tx t WHERE t.tx_id = p_tx FOR UPDATE;
        SELECT c.command_id, c.actor INTO number, asker FROM txm.tx_commands c
         WHERE c.signer = p_signer AND c.state = 1 AND c.tx_id = p_tx AND c.what = 'cancel'
         ORDER BY c.command_id LIMIT 1;
        IF FOUND THEN
            INSERT INTO txm.audit (at, tx_id, signer, actor, what, reason)
            SELECT now, p_tx, p_signer, p_actor, p_what, p_reason WHERE p_actor <> asker;
            RETURN number;
        END IF;
    END IF;
    INSERT INTO txm.tx_commands (tx_id, at, state, signer, what, actor, reason, body)
    VALUES (p_tx, now, CASE WHEN p_what IN ('resolve', 'resume', 'adopt') THEN 0 ELSE 1 END,
            p_signer, p_what, p_actor, p_reason, p_body)
    RETURNING command_id INTO number;
    INSERT INTO txm.audit (at, tx_id, signer, actor, what, reason)
    VALUES (now, p_tx, p_signer, p_actor, p_what, p_reason);
    RETURN number;
END
$$;

-- Gives a mined transaction of a signer its row. A request that is there without a nonce gets that
-- nonce; any other row with its id, or with its business key, is UB002. Behind it the row is one
-- that was sent: its owner looks for the receipt, and follows it to its end.
CREATE FUNCTION txm.imported(c txm.tx_commands, p_nonce BIGINT, p_row JSONB, p_actor TEXT)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    my_xid BIGINT := pg_current_xact_id()::text::bigint;
    my_epoch BIGINT := (SELECT epoch FROM txm.settings);
    request TEXT := p_row ->> 'request_id';
    business TEXT := p_row ->> 'business_key';
    its_gas BIGINT := (p_row ->> 'gas')::bigint;
    a JSONB := p_row -> 'attempt';
    t txm.managed_tx;
    was_state SMALLINT;
BEGIN
    SELECT * INTO t FROM txm.managed_tx m
     WHERE m.signer = c.signer AND m.request_id = request FOR UPDATE;
    IF FOUND THEN
        IF t.state <> 0 OR t.payload - 'gas' <> (p_row -> 'payload') - 'gas'
           OR COALESCE((t.payload ->> 'gas')::bigint, its_gas) <> its_gas
           OR business IS DISTINCT FROM t.business_key THEN
            RAISE EXCEPTION 'request % of % has another row', request, c.signer
                USING ERRCODE = 'UB002';
        END IF;
        was_state := t.state;
        UPDATE txm.managed_tx m
           SET nonce = p_nonce, gas_limit = its_gas, state = 30, sub_state = 5,
               tx_hash = txm.bytes(a ->> 'hash'), first_submit_at = now, last_submit_at = now,
               next_resubmit_at = now,
               version = m.version + 1, event_seq = m.event_seq + 1, updated_at = now
         WHERE m.tx_id = t.tx_id RETURNING m.* INTO STRICT t;
    ELSIF business IS NOT NULL
          AND EXISTS (SELECT FROM txm.managed_tx m WHERE m.business_key = business) THEN
        RAISE EXCEPTION 'business key % has another row', business USING ERRCODE = 'UB002';
    ELSE
        INSERT INTO txm.managed_tx
            (tx_id, signer, request_id, business_key, fingerprint, payload, nonce, gas_limit, state,
             sub_state, tx_hash, first_submit_at, last_submit_at, next_resubmit_at, version,
             event_seq, fencing_token, created_at, updated_at)
        VALUES (txm.uuid7(now), c.signer, request, business, p_row ->> 'fingerprint',
                p_row -> 'payload', p_nonce, its_gas, 30, 5,
                txm.bytes(a ->> 'hash'), now, now, now, 1, 1, 0, now, now)
        RETURNING * INTO STRICT t;
    END IF;
    INSERT INTO txm.tx_attempts
        (tx_id, attempt, kind, was_in_pool, gas, fencing_token, signed_at, max_fee, max_tip,
         tx_hash, raw)
    VALUES (t.tx_id, 1, 1, TRUE, its_gas, t.fencing_token, now,
            (a ->> 'max_fee')::numeric, (a ->> 'max_tip')::numeric, txm.bytes(a ->> 'hash'),
            txm.bytes(a ->> 'raw'));
    INSERT INTO txm.tx_history (tx_id, version, token, at, attempts, from_state, state, sub_state,
                                code, node)
    VALUES (t.tx_id, t.version, t.fencing_token, now, 1, was_state, t.state, t.sub_state, t.code,
            p_actor);
    INSERT INTO txm.tx_events (epoch, xid, at, seq, new_fork, tx_id, kind, body)
    VALUES (my_epoch, my_xid, now, t.event_seq, FALSE, t.tx_id, 'state', txm.event_json(t));
    INSERT INTO txm.audit (at, tx_id, signer, actor, what, reason)
    VALUES (now, t.tx_id, c.signer, p_actor, format('import nonce %s', p_nonce), c.reason);
END
$$;

-- Everything of a signer that an adoption must name, beside the nonces that the chain has and no
-- row. `seen`: the nonce behind the last one that was signed before the rows became an older copy.
-- `lost`: nonces that rows have lost to another transaction since then, and that one has no row.
-- `filling`: the fills since then that are not final. `waiting`: the requests without a nonce from
-- before the suspension. A database that is lost may have ended one, and its client may know that.
CREATE FUNCTION txm.to_adopt(p_signer TEXT)
RETURNS TABLE (seen BIGINT, lost BIGINT[], filling BIGINT, waiting TEXT[]) LANGUAGE sql STABLE AS $$
    WITH since AS (
        -- A chain that is ahead of an older copy is the same news again.
        SELECT min(u.at) AS at, max(u.seen_nonce) AS nonce,
               COALESCE(max(COALESCE(u.again_at, u.at)) FILTER (WHERE u.reason ^@ 'DATABASE_'),
                        max(COALESCE(u.again_at, u.at)), txm.clock()) AS last
          FROM txm.signer_suspensions u
         WHERE u.signer = p_signer AND txm.may_lack_rows(u.reason)),
    fills AS (
        -- Ids of version 7 begin with their moment.
        SELECT t.* FROM since s JOIN txm.managed_tx t
            ON t.signer = p_signer AND t.request_id ^@ 'fill/' AND t.created_at >= s.at
           AND t.tx_id >= rpad(lpad(to_hex(txm.ms(s.at)), 12, '0'), 32, '0')::uuid)
    SELECT s.nonce,
           -- A row that loses its nonce suspends its signer a moment later.
           ARRAY(SELECT f.nonce FROM txm.managed_tx f
                  WHERE f.signer = p_signer AND f.code = 6
                    AND f.updated_at >= s.at - INTERVAL '1 minute' AND NOT EXISTS (
                      SELECT FROM txm.managed_tx t WHERE t.signer = p_signer
                         AND t.nonce = f.nonce AND t.code IS DISTINCT FROM 6)
                  ORDER BY f.nonce),
           (SELECT count(*) FROM fills f WHERE f.final_at IS NULL),
           ARRAY(SELECT t.request_id FROM txm.managed_tx t
                  WHERE t.signer = p_signer AND t.nonce IS NULL AND t.final_at IS NULL
                    AND t.state = 0 AND t.created_at < s.last
                  ORDER BY t.request_id)
      FROM since s
$$;

-- Ends requests without a nonce: nothing of them is on the chain.
CREATE FUNCTION txm.dropped(c txm.tx_commands, p_requests TEXT[], p_token BIGINT, p_actor TEXT)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    t txm.managed_tx;
    step JSONB;
    olds txm.managed_tx[] := '{}';
    news txm.managed_tx[] := '{}';
    steps JSONB[] := '{}';
BEGIN
    FOR t IN SELECT * FROM txm.managed_tx m
              WHERE m.signer = c.signer AND m.request_id = ANY (p_requests)
              ORDER BY m.tx_id FOR UPDATE LOOP
        step := jsonb_build_object('id', t.tx_id, 'state', -10, 'code', 1, 'refusal', 'CANCELLED',
                                   'wish', t.wish, 'resends', t.resends, 'fork', t.fork,
                                   'submits', FALSE, 'is_final', TRUE, 'attempts', 0);
        olds := array_append(olds, t);
        news := array_append(news, txm.stepped(t, step, GREATEST(t.fencing_token, p_token), now));
        steps := array_append(steps, step);
        INSERT INTO txm.audit (at, tx_id, signer, actor, what, reason)
        VALUES (now, t.tx_id, c.signer, p_actor, 'drop', c.reason);
    END LOOP;
    PERFORM txm.store(olds, news, steps, p_token, p_actor, now);
END
$$;

-- Adopts transactions of the chain without a row: the cursor goes behind them, each gets its row or
-- is a jump, and the suspensions that a comparison must end are lifted. They stay while nonces may
-- be under way that the older rows do not know.
CREATE FUNCTION txm.adopted(c txm.tx_commands, p_actor TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    upcoming BIGINT := (c.body ->> 'cursor')::bigint;
    -- Taken out of the body once: it may be long.
    imports JSONB := COALESCE(c.body -> 'import', '{}');
    foreigns JSONB := COALESCE(c.body -> 'foreign', '{}');
    pays JSONB := COALESCE(c.body -> 'pay', '[]');
    drops JSONB := COALESCE(c.body -> 'drop', '[]');
    rest TEXT := c.body ->> 'rest';
    was txm.signer_nonce_cursor;
    needs RECORD;
    wanted BIGINT[];
    r RECORD;
BEGIN
    -- Behind the fenced writes that are under way, and no other one follows: the owner's book is
    -- older than the rows that come now, so its lease ends here.
    PERFORM FROM txm.signer_lease l WHERE l.signer = c.signer FOR UPDATE;
    UPDATE txm.signer_lease l SET expires_at = '-infinity', updated_at = txm.clock()
     WHERE l.signer = c.signer;
    SELECT * INTO STRICT was FROM txm.signer_nonce_cursor n WHERE n.signer = c.signer FOR UPDATE;
    PERFORM FROM txm.signer_suspensions u WHERE u.signer = c.signer ORDER BY u.reason FOR UPDATE;
    SELECT * INTO STRICT needs FROM txm.to_adopt(c.signer);
    wanted := needs.lost || ARRAY(SELECT generate_series(was.next_nonce, upcoming - 1));
    -- A nonce has one row, beside one that has lost it.
    IF EXISTS (SELECT FROM jsonb_object_keys(imports) key
                WHERE key::bigint >= GREATEST(was.next_nonce, upcoming)
                   OR EXISTS (SELECT FROM txm.managed_tx t
                               WHERE t.signer = c.signer AND t.nonce = key::bigint
                                 AND t.code IS DISTINCT FROM 6)) THEN
        RAISE EXCEPTION 'a nonce of % that is to be imported has a row', c.signer
            USING ERRCODE = 'UB002';
    END IF;
    -- Every nonce that is passed over, or was lost, was named by the operators, once.
    IF EXISTS (SELECT FROM unnest(wanted) n
                WHERE foreigns ? n::text = imports ? n::text) THEN
        RAISE EXCEPTION 'nonces % of % are not all named, each once', wanted, c.signer
            USING ERRCODE = 'UB002';
    END IF;
    -- Each run of foreign nonces is one jump.
    INSERT INTO txm.nonce_jumps
    SELECT c.signer, min(run.n), max(run.n) + 1, was.fencing_token, txm.clock()
      FROM (SELECT n, n - row_number() OVER (ORDER BY n) AS part
              FROM generate_series(was.next_nonce, upcoming - 1) n
             WHERE NOT imports ? n::text) run
     GROUP BY run.part ORDER BY 2;
    FOR r IN SELECT key::bigint AS n FROM jsonb_object_keys(imports) key ORDER BY 1 LOOP
        PERFORM txm.imported(c, r.n, imports -> r.n::text, p_actor);
    END LOOP;
    UPDATE txm.signer_nonce_cursor n SET next_nonce = upcoming, updated_at = txm.clock()
     WHERE n.signer = c.signer AND n.next_nonce < upcoming;
    IF needs.seen > GREATEST(was.next_nonce, upcoming) THEN
        -- A node that was started meanwhile has seen more.
        IF pays <> '[]' OR drops <> '[]' OR rest IS NOT NULL THEN
            RAISE EXCEPTION '% stays suspended: its requests are named later', c.signer
                USING ERRCODE = 'UB002';
        END IF;
        RETURN;
    END IF;
    IF needs.filling > 0 THEN
        RAISE EXCEPTION '% fills of % are not final yet', needs.filling, c.signer
            USING ERRCODE = 'UB002';
    END IF;
    -- An import has numbered some of them.
    SELECT * INTO STRICT needs FROM txm.to_adopt(c.signer);
    IF EXISTS (SELECT FROM unnest(needs.waiting) q
                WHERE pays ? q AND drops ? q OR NOT (pays ? q OR drops ? q) AND rest IS NULL) THEN
        RAISE EXCEPTION 'the requests of % without a nonce are not all named, each once', c.signer
            USING ERRCODE = 'UB002';
    END IF;
    PERFORM txm.dropped(c, ARRAY(SELECT q FROM unnest(needs.waiting) q
                                  WHERE drops ? q OR rest = 'drop' AND NOT pays ? q),
                        was.fencing_token, p_actor);
    PERFORM txm.lifted(c.signer, u.reason, p_actor, c.reason)
       FROM txm.signer_suspensions u WHERE u.signer = c.signer AND txm.may_lack_rows(u.reason);
END
$$;

-- Seconds a command. FALSE: it does not wait for this, or this is its first operator. A resume and
-- an adopt are carried out at once.
CREATE FUNCTION txm.second(p_command BIGINT, p_actor TEXT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    c txm.tx_commands;
    at_once BOOLEAN;
BEGIN
    SELECT * INTO c FROM txm.tx_commands m WHERE m.command_id = p_command FOR UPDATE;
    IF NOT FOUND OR c.state <> 0 OR c.actor = p_actor THEN
        RETURN FALSE;
    END IF;
    at_once := c.what IN ('resume', 'adopt');
    IF c.what = 'resume' THEN
        PERFORM txm.lifted(c.signer, c.body ->> 'reason', p_actor, c.reason);
    ELSIF c.what = 'adopt' THEN
        PERFORM txm.adopted(c, p_actor);
    END IF;
    UPDATE txm.tx_commands m
       SET state = CASE WHEN at_once THEN 2 ELSE 1 END, seconded_by = p_actor,
           done_at = CASE WHEN at_once THEN txm.clock() END
     WHERE m.command_id = p_command;
    INSERT INTO txm.audit (at, tx_id, signer, actor, what, reason)
    VALUES (txm.clock(), c.tx_id, c.signer, p_actor, 'second ' || c.what, c.reason);
    RETURN TRUE;
END
$$;

-- Cancels by the client's id. An unknown one becomes a row that failed, so that a late request
-- finds that. `command` is NULL where none is needed.
CREATE FUNCTION txm.cancel_by_request(p_signer TEXT, p_request TEXT, p_actor TEXT, p_reason TEXT)
RETURNS TABLE (is_new BOOLEAN, command BIGINT, details TEXT) LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    t txm.managed_tx;
BEGIN
    IF NOT EXISTS (SELECT FROM txm.signers s WHERE s.signer = p_signer) THEN
        RAISE EXCEPTION 'signer % is unknown', p_signer USING ERRCODE = 'UB002';
    END IF;
    command := NULL;
    -- Ordered with the suspensions of an older copy: one may have paid the request.
    PERFORM FROM txm.signer_lease l WHERE l.signer = p_signer FOR KEY SHARE;
    IF EXISTS (SELECT FROM txm.signer_suspensions u
                WHERE u.signer = p_signer AND txm.may_lack_rows(u.reason))
       AND NOT EXISTS (SELECT FROM txm.managed_tx m
                        WHERE m.signer = p_signer AND m.request_id = p_request) THEN
        RAISE EXCEPTION 'the rows of % may be older than the chain', p_signer
            USING ERRCODE = 'UB002';
    END IF;
    INSERT INTO txm.managed_tx
        (tx_id, signer, request_id, fingerprint, payload, state, code, refusal, version, event_seq,
         fencing_token, created_at, updated_at, final_at)
    VALUES (txm.uuid7(now), p_signer, p_request, '',
            jsonb_build_object('to', '0x' || repeat('0', 40), 'value', '0', 'data', '0x',
                               'token', NULL, 'gas', NULL),
            -10, 1, 'CANCELLED', 1, 1, 0, now, now, now)
        ON CONFLICT DO NOTHING RETURNING * INTO t;
    is_new := FOUND;
    IF is_new THEN
        PERFORM txm.begun(ARRAY[t.tx_id], p_actor, 0);
        INSERT INTO txm.audit (at, tx_id, signer, actor, what, reason)
        VALUES (now, t.tx_id, p_signer, p_actor, 'cancel', p_reason);
    ELSE
        SELECT * INTO STRICT t FROM txm.managed_tx m
         WHERE m.signer = p_signer AND m.request_id = p_request;
        IF t.state NOT IN (40, -10) THEN
            command := txm.command(p_signer, t.tx_id, 'cancel', '{}', p_actor, p_reason);
        END IF;
    END IF;
    details := txm.details_json(t, TRUE)::text;
    RETURN NEXT;
END
$$;
