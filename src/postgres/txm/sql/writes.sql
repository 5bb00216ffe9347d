-- The fenced writes of an owner, and the commands that it carries out.

-- Whether the outflow of a signer would pass its limit with this payment, the last hour counted by
-- whole minutes. If not, the payment is added. An asset without a limit passes. So do data for a
-- token with a limit: they may move that token, and cannot be counted. `p_limits` is null where the
-- node wants no limits.
CREATE FUNCTION txm.outflow_passes(p_signer TEXT, p_payload JSONB, p_limits JSONB) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    coin TEXT := COALESCE(p_payload #>> '{token,contract}', '');
    is_call BOOLEAN := coin = '' AND COALESCE(p_payload ->> 'data', '0x') <> '0x';
    units NUMERIC := COALESCE(p_payload #>> '{token,amount}', p_payload ->> 'value')::numeric;
    before NUMERIC := (SELECT COALESCE(sum(m.units), 0) FROM txm.outflow_minutes m
                        WHERE m.signer = p_signer AND m.asset = coin
                          AND m.minute > now - INTERVAL '61 minutes');
BEGIN
    IF p_limits <> 'null' AND (NOT p_limits ? coin OR before + units > (p_limits ->> coin)::numeric
                               OR is_call AND p_limits ? (p_payload ->> 'to')) THEN
        RETURN TRUE;
    END IF;
    INSERT INTO txm.outflow_minutes AS m VALUES (p_signer, coin, date_trunc('minute', now), units)
        ON CONFLICT (signer, asset, minute) DO UPDATE SET units = m.units + EXCLUDED.units;
    RETURN FALSE;
END
$$;

-- Adds a suspension; FALSE: it is there already.
CREATE FUNCTION txm.suspension(p_signer TEXT, p_reason TEXT, p_actor TEXT, p_about TEXT)
RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO txm.signer_suspensions (signer, reason, actor, about, at)
    VALUES (p_signer, p_reason, p_actor, p_about, txm.clock()) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    INSERT INTO txm.audit (at, signer, actor, what, reason)
    VALUES (txm.clock(), p_signer, p_actor, 'suspend ' || p_reason, p_about);
    RETURN TRUE;
END
$$;

-- The same by any node, not fenced. It waits for the fenced writes that are under way, and those
-- behind it read the suspension under the lock of their lease: behind its answer no nonce is given
-- and no payment is stored.
CREATE FUNCTION txm.suspended(p_signer TEXT, p_reason TEXT, p_actor TEXT, p_about TEXT)
RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM txm.signer_lease l WHERE l.signer = p_signer FOR UPDATE;
    IF NOT FOUND THEN
        -- The first lease of a signer refers to this row.
        PERFORM 1 FROM txm.signers s WHERE s.signer = p_signer FOR UPDATE;
        PERFORM 1 FROM txm.signer_lease l WHERE l.signer = p_signer FOR UPDATE;
    END IF;
    RETURN txm.suspension(p_signer, p_reason, p_actor, p_about);
END
$$;

-- A row behind a step, which has been compared. Nothing is written here.
CREATE FUNCTION txm.stepped(was txm.managed_tx, p_step JSONB, p_token BIGINT, p_now TIMESTAMPTZ)
RETURNS txm.managed_tx LANGUAGE plpgsql STABLE AS $$
DECLARE
    t txm.managed_tx := was;
    tells INTEGER := (p_step -> 'confirmed' <> 'null')::int;
BEGIN
    t.state := (p_step ->> 'state')::smallint;
    t.sub_state := (p_step ->> 'sub')::smallint;
    t.code := (p_step ->> 'code')::smallint;
    t.refusal := p_step ->> 'refusal';
    t.wish := (p_step ->> 'wish')::smallint;
    t.resends := (p_step ->> 'resends')::int;
    t.fork := (p_step ->> 'fork')::int;
    t.cost_wei := (p_step ->> 'cost')::numeric;
    t.tx_hash := COALESCE(txm.bytes(p_step ->> 'tx_hash'), was.tx_hash);
    t.receipt := NULLIF(p_step -> 'receipt', 'null');
    t.receipt_number := (t.receipt ->> 'block_number')::bigint;
    t.receipt_hash := txm.bytes(t.receipt ->> 'block_hash');
    t.next_resubmit_at := p_now + (p_step ->> 'resubmit_in_ms')::bigint * INTERVAL '1 millisecond';
    IF (p_step ->> 'submits')::boolean THEN
        t.last_submit_at := p_now;
        t.first_submit_at := COALESCE(was.first_submit_at, p_now);
    END IF;
    IF t.state = 40 THEN
        t.confirmed_at := COALESCE(was.confirmed_at, p_now);
    END IF;
    -- A row that failed without a nonce: nothing of it is on the chain.
    IF (p_step ->> 'is_final')::boolean OR t.state = -10 AND t.nonce IS NULL THEN
        t.final_at := p_now;
    END IF;
    t.version := was.version + 1;
    t.fencing_token := p_token;
    t.updated_at := p_now;
    t.event_seq := was.event_seq + COALESCE(tells, 0) + txm.is_told(was, t)::int;
    RETURN t;
END
$$;

-- Whether a row passes from one standing to another.
CREATE FUNCTION txm.passes(was txm.managed_tx, t txm.managed_tx) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT (was.state, was.sub_state, was.code) IS DISTINCT FROM (t.state, t.sub_state, t.code)
$$;

-- Whether a change of a row is an event of its state.
CREATE FUNCTION txm.is_told(was txm.managed_tx, t txm.managed_tx) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT txm.passes(was, t) OR was.tx_hash IS DISTINCT FROM t.tx_hash
$$;

-- Writes steps of different rows, with everything that they bring, and tells them. `p_was` and
-- `p_rows`: each row before and behind its step. One statement a table: for each row alone, a
-- statement would take several times as long.
CREATE FUNCTION txm.store(p_was txm.managed_tx[], p_rows txm.managed_tx[], p_steps JSONB[],
                          p_token BIGINT, p_node TEXT, p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    my_xid BIGINT := pg_current_xact_id()::text::bigint;
    my_epoch BIGINT := (SELECT epoch FROM txm.settings);
BEGIN
    INSERT INTO txm.tx_attempts
        (tx_id, attempt, kind, gas, fencing_token, signed_at, max_fee, max_tip, tx_hash, raw)
    SELECT (s ->> 'id')::uuid, (a ->> 'number')::int, (a ->> 'kind')::smallint,
           (a ->> 'gas')::bigint, p_token, p_now, (a ->> 'max_fee')::numeric,
           (a ->> 'max_tip')::numeric, txm.bytes(a ->> 'hash'), txm.bytes(a ->> 'raw')
      FROM (SELECT s, s -> 'attempt' AS a FROM unnest(p_steps) s) s WHERE a <> 'null'
        ON CONFLICT (tx_id, attempt) DO NOTHING;
    UPDATE txm.tx_attempts t
       SET class = c ->> 'class', was_in_pool = t.was_in_pool OR (c ->> 'was_in_pool')::boolean,
           answers = t.answers || COALESCE(c -> 'answers', '{}'),
           answered_at = CASE WHEN c ? 'answers' THEN p_now ELSE t.answered_at END
      FROM unnest(p_steps) s CROSS JOIN LATERAL jsonb_array_elements(s -> 'classes') c
     WHERE t.tx_id = (s ->> 'id')::uuid AND t.attempt = (c ->> 'number')::int
       AND (c ? 'answers' OR t.class IS DISTINCT FROM c ->> 'class'
            OR (c ->> 'was_in_pool')::boolean AND NOT t.was_in_pool);
    INSERT INTO txm.tx_confirmations (tx_id, fork, block_number, at, block_hash, parent_hash)
    SELECT (s ->> 'id')::uuid, (s ->> 'fork')::int, (b ->> 'number')::bigint, p_now,
           txm.bytes(b ->> 'hash'), txm.bytes(b ->> 'parent')
      FROM unnest(p_steps) s CROSS JOIN LATERAL jsonb_array_elements(s #> '{confirmed,blocks}') b
        ON CONFLICT DO NOTHING;
    UPDATE txm.managed_tx m
       SET state = t.state, sub_state = t.sub_state, code = t.code, refusal = t.refusal,
           wish = t.wish, resends = t.resends, fork = t.fork, cost_wei = t.cost_wei,
           tx_hash = t.tx_hash, receipt = t.receipt, receipt_number = t.receipt_number,
           receipt_hash = t.receipt_hash, next_resubmit_at = t.next_resubmit_at,
           last_submit_at = t.last_submit_at, first_submit_at = t.first_submit_at,
           confirmed_at = t.confirmed_at, final_at = t.final_at, version = t.version,
           fencing_token = t.fencing_token, updated_at = t.updated_at, event_seq = t.event_seq
      FROM unnest(p_rows) t WHERE m.tx_id = t.tx_id;
    INSERT INTO txm.tx_history (tx_id, version, token, at, attempts, from_state, state, sub_state,
                                code, node)
    SELECT (t).tx_id, (t).version, p_token, p_now, (s ->> 'attempts')::int, (was).state, (t).state,
           (t).sub_state, (t).code, p_node
      FROM ROWS FROM (unnest(p_steps)) WITH ORDINALITY s (s, place)
     CROSS JOIN LATERAL (SELECT p_was[place] AS was, p_rows[place] AS t OFFSET 0) r
     WHERE txm.passes(was, t) OR s -> 'attempt' <> 'null';
    -- The confirmations of a row before its state.
    INSERT INTO txm.tx_events (epoch, xid, at, seq, new_fork, tx_id, kind, body)
    SELECT my_epoch, my_xid, p_now, e.seq, e.new_fork, (t).tx_id, e.kind,
           txm.event_json(t) || e.more
      FROM ROWS FROM (unnest(p_steps)) WITH ORDINALITY s (s, place)
     CROSS JOIN LATERAL (SELECT p_was[place] AS was, p_rows[place] AS t OFFSET 0) r
     CROSS JOIN LATERAL (
        SELECT (was).event_seq + 1, (c -> 'new_fork')::boolean, 'confirmations',
               jsonb_build_object('newFork', c -> 'new_fork', 'fork', (t).fork,
                                  'receipt', (t).receipt, 'confirmations', c -> 'blocks')
          FROM (SELECT s -> 'confirmed' AS c OFFSET 0) c WHERE c <> 'null'
        UNION ALL
        SELECT (t).event_seq, FALSE, 'state', '{}'::jsonb WHERE txm.is_told(was, t)
     ) e (seq, new_fork, kind, more)
     ORDER BY s.place, e.seq;
END
$$;

-- Fenced: writes steps of rows of one signer, each a compare-and-set on the version. One answer a
-- step, in their order; NULL: another version, and nothing of it is written. So is a second step of
-- one row. A new attempt that pays is not written for a suspended signer, also if a step before it
-- suspended the signer. A first payment that would pass the outflow limit is not written either,
-- and suspends the signer. So does a nonce that another transaction took, with its row.
CREATE FUNCTION txm.write(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_steps JSONB, p_limits JSONB)
RETURNS SETOF TEXT LANGUAGE plpgsql AS $$
DECLARE
    my_node TEXT := (SELECT node_id FROM txm.nodes WHERE incarnation = p_me);
    now TIMESTAMPTZ;
    step JSONB;
    was txm.managed_tx;
    pays BOOLEAN;
    is_first BOOLEAN;
    ids UUID[] := '{}';
    olds txm.managed_tx[] := '{}';
    news txm.managed_tx[] := '{}';
    steps JSONB[] := '{}';
    -- By step: the row to answer with, of those that are written and those that are not.
    answers txm.managed_tx[] := '{}';
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    now := txm.clock();
    FOR step IN SELECT value FROM jsonb_array_elements(p_steps) LOOP
        SELECT * INTO was FROM txm.managed_tx m
         WHERE m.tx_id = (step ->> 'id')::uuid AND m.signer = p_signer FOR UPDATE;
        IF NOT FOUND OR was.version <> (step ->> 'version')::bigint OR was.tx_id = ANY (ids) THEN
            -- A late twin of an attempt gets the stored one.
            IF NOT EXISTS (
                SELECT FROM txm.tx_attempts a WHERE a.tx_id = was.tx_id
                   AND a.attempt = (step #>> '{attempt,number}')::int) THEN
                was := NULL;
            END IF;
            answers := array_append(answers, was);
            CONTINUE;
        END IF;
        -- One that is mined already is not a new payment.
        pays := COALESCE(step #>> '{attempt,kind}' IN ('1', '2')
                         AND step #> '{attempt,was_in_pool}' IS DISTINCT FROM 'true', FALSE);
        IF pays AND txm.is_suspended(p_signer) THEN
            answers := array_append(answers, NULL);
            CONTINUE;
        END IF;
        -- A step without an attempt has no first payment, and counts none: NULL AND would ask.
        is_first := pays AND step #>> '{attempt,number}' = '1' AND step #>> '{attempt,kind}' = '1';
        IF is_first AND txm.outflow_passes(p_signer, was.payload, p_limits) THEN
            PERFORM txm.suspension(p_signer, 'OUTFLOW_LIMIT', 'txm',
                                   format('asset %s: transaction %s would pass its limit',
                                          COALESCE(was.payload #>> '{token,contract}', 'native'),
                                          was.tx_id));
            answers := array_append(answers, NULL);
            CONTINUE;
        END IF;
        -- A fill that loses is no news: the jump over its nonce has shown the other wallet.
        IF step ->> 'code' = '6' AND was.code IS DISTINCT FROM 6
           AND NOT was.request_id ^@ 'fill/' THEN
            PERFORM txm.suspension(p_signer, 'NONCE_TAKEN', 'txm',
                                   format('nonce %s of transaction %s', was.nonce, was.tx_id));
        END IF;
        ids := array_append(ids, was.tx_id);
        steps := array_append(steps, step);
        olds := array_append(olds, was);
        was := txm.stepped(was, step, p_token, now);
        news := array_append(news, was);
        answers := array_append(answers, was);
    END LOOP;
    IF ids <> '{}' THEN
        PERFORM txm.store(olds, news, steps, p_token, my_node, now);
    END IF;
    -- Another statement: the one before does not see its own rows.
    RETURN QUERY
    SELECT CASE WHEN (answers[place]).tx_id IS NOT NULL
                THEN txm.tx_json(answers[place])::text END
      FROM generate_series(1, cardinality(answers)) place ORDER BY place;
END
$$;

-- Fenced: suspends a signer.
CREATE FUNCTION txm.suspend(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_reason TEXT, p_about TEXT)
RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    PERFORM txm.suspension(p_signer, p_reason, 'txm', p_about);
END
$$;

-- Fenced: a command is done, or refused for a reason. A repeat changes nothing.
CREATE FUNCTION txm.commanded(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_command BIGINT,
                              p_refused TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    UPDATE txm.tx_commands c
       SET state = CASE WHEN p_refused IS NULL THEN 2 ELSE 3 END, refusal = p_refused,
           done_at = txm.clock()
     WHERE c.command_id = p_command AND c.signer = p_signer AND c.state = 1;
END
$$;

-- Fenced: everything of a signer that its new owner must know. Kinds: suspended, cursor, command,
-- tx (the oldest 1000 of those without a nonce, and those of them with an open command; those with
-- one that are not final, ended ones among them), jumped (those below a row that is final on chain
-- are mined, and left out). The others arrive.
CREATE FUNCTION txm.book(p_signer TEXT, p_me BIGINT, p_token BIGINT)
RETURNS TABLE (kind TEXT, body TEXT) LANGUAGE plpgsql AS $$
DECLARE
    settled BIGINT;
    last UUID;
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    SELECT COALESCE(max(top.nonce), -1) INTO settled FROM (
        SELECT t.nonce FROM txm.managed_tx t
         WHERE t.signer = p_signer AND t.nonce IS NOT NULL AND t.final_at IS NOT NULL
           AND t.receipt_number IS NOT NULL
         ORDER BY t.nonce DESC LIMIT 1) top;
    RETURN QUERY SELECT 'suspended', jsonb_build_object('reason', s.reason, 'actor', s.actor)::text
                   FROM txm.signer_suspensions s WHERE s.signer = p_signer ORDER BY s.reason;
    RETURN QUERY SELECT 'cursor', c.next_nonce::text
                   FROM txm.signer_nonce_cursor c WHERE c.signer = p_signer;
    -- Before the rows: a command about a row that is not read then is about one that is over.
    RETURN QUERY SELECT 'command', txm.command_json(c)::text FROM txm.tx_commands c
                  WHERE c.signer = p_signer AND c.state = 1 ORDER BY c.command_id;
    SELECT u.tx_id INTO last FROM (
        SELECT m.tx_id FROM txm.managed_tx m
         WHERE m.signer = p_signer AND m.nonce IS NULL AND m.final_at IS NULL
         ORDER BY m.tx_id LIMIT 1000) u
     ORDER BY u.tx_id DESC LIMIT 1;
    -- Before those with a nonce: one that gets its nonce meanwhile is in both.
    RETURN QUERY SELECT 'tx', txm.tx_json(t)::text FROM txm.managed_tx t
                  WHERE t.signer = p_signer AND t.nonce IS NULL AND t.final_at IS NULL
                    AND t.tx_id <= last
                  ORDER BY t.tx_id;
    RETURN QUERY SELECT 'tx', txm.tx_json(t)::text FROM txm.tx_commands c
                   JOIN txm.managed_tx t ON t.tx_id = c.tx_id
                  WHERE c.signer = p_signer AND c.state = 1
                    AND t.nonce IS NULL AND t.final_at IS NULL AND t.tx_id > last
                  ORDER BY t.tx_id;
    RETURN QUERY SELECT 'tx', txm.tx_json(t)::text FROM txm.managed_tx t
                  WHERE t.signer = p_signer AND t.final_at IS NULL AND t.nonce IS NOT NULL
                  ORDER BY t.nonce;
    RETURN QUERY SELECT 'jumped', n::text FROM txm.nonce_jumps j
                  CROSS JOIN LATERAL generate_series(j.first_nonce, j.before_nonce - 1) n
                  WHERE j.signer = p_signer AND j.before_nonce > settled AND n > settled
                    AND txm.is_jumped(p_signer, n)
                  ORDER BY n;
END
$$;

-- Work that came to signers: rows without a nonce that are not known, the oldest first, at most
-- 100; rows without a nonce and with a deadline that has passed; open commands; suspensions.
-- Planned anew for each look: as a constant, the list of known rows is hashed.
CREATE FUNCTION txm.arrived(p_signers TEXT[], p_known UUID[])
RETURNS TABLE (kind TEXT, signer TEXT, body TEXT)
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
BEGIN
    RETURN QUERY SELECT 'tx', t.signer, txm.tx_json(t)::text FROM (
        SELECT r.* FROM unnest(p_signers) s (signer) CROSS JOIN LATERAL (
            SELECT * FROM txm.managed_tx m
             WHERE m.signer = s.signer AND m.nonce IS NULL AND m.final_at IS NULL
               AND m.tx_id <> ALL (p_known) AND m.state = 0
             ORDER BY m.tx_id LIMIT 100) r
         ORDER BY r.tx_id LIMIT 100) t;
    RETURN QUERY SELECT 'expired', s.signer, m.tx_id::text
                   FROM unnest(p_signers) s (signer) CROSS JOIN LATERAL (
                       SELECT r.tx_id FROM txm.managed_tx r
                        WHERE r.signer = s.signer AND r.nonce IS NULL AND r.final_at IS NULL
                          AND r.deadline <= now AND r.state = 0
                        ORDER BY r.deadline LIMIT 100) m;
    RETURN QUERY SELECT 'command', c.signer, txm.command_json(c)::text
                   FROM unnest(p_signers) s (signer)
                   JOIN txm.tx_commands c ON c.signer = s.signer AND c.state = 1
                  ORDER BY c.command_id;
    RETURN QUERY SELECT 'suspended', u.signer,
                        jsonb_build_object('reason', u.reason, 'actor', u.actor)::text
                   FROM unnest(p_signers) s (signer)
                   JOIN txm.signer_suspensions u ON u.signer = s.signer
                  ORDER BY u.signer, u.reason;
END
$$;
