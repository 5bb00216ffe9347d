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
    INSERT INTO txm.signer_suspensions
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

-- Adds the rows that a step brings beside its own: the new attempt, classes and answers, and
-- confirmations.
CREATE FUNCTION txm.added(p_step JSONB, p_id UUID, p_token BIGINT, p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    a JSONB := NULLIF(p_step -> 'attempt', 'null');
BEGIN
    IF a IS NOT NULL THEN
        INSERT INTO txm.tx_attempts
            (tx_id, attempt, kind, gas, fencing_token, signed_at, max_fee, max_tip, tx_hash, raw)
        VALUES (p_id, (a ->> 'number')::int, (a ->> 'kind')::smallint, (a ->> 'gas')::bigint,
                p_token, p_now, (a ->> 'max_fee')::numeric, (a ->> 'max_tip')::numeric,
                txm.bytes(a ->> 'hash'), txm.bytes(a ->> 'raw'))
            ON CONFLICT (tx_id, attempt) DO NOTHING;
    END IF;
    UPDATE txm.tx_attempts t
       SET class = c ->> 'class', was_in_pool = t.was_in_pool OR (c ->> 'was_in_pool')::boolean,
           answers = t.answers || COALESCE(c -> 'answers', '{}'),
           answered_at = CASE WHEN c ? 'answers' THEN p_now ELSE t.answered_at END
      FROM jsonb_array_elements(p_step -> 'classes') c
     WHERE t.tx_id = p_id AND t.attempt = (c ->> 'number')::int;
    INSERT INTO txm.tx_confirmations (tx_id, fork, block_number, at, block_hash, parent_hash)
    SELECT p_id, (p_step ->> 'fork')::int, (b ->> 'number')::bigint, p_now,
           txm.bytes(b ->> 'hash'), txm.bytes(b ->> 'parent')
      FROM jsonb_array_elements(p_step #> '{confirmed,blocks}') b
        ON CONFLICT DO NOTHING;
END
$$;

-- Writes one step of a row that has been compared, and tells it.
CREATE FUNCTION txm.write_once(was txm.managed_tx, p_step JSONB, p_token BIGINT, p_node TEXT,
                               p_now TIMESTAMPTZ) RETURNS txm.managed_tx LANGUAGE plpgsql AS $$
DECLARE
    t txm.managed_tx := was;
    my_xid BIGINT := pg_current_xact_id()::text::bigint;
    my_epoch BIGINT := (SELECT epoch FROM txm.settings);
    confirmed JSONB := NULLIF(p_step -> 'confirmed', 'null');
    passes BOOLEAN;
    tells BOOLEAN;
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
    passes := (was.state, was.sub_state, was.code) IS DISTINCT FROM (t.state, t.sub_state, t.code);
    tells := passes OR was.tx_hash IS DISTINCT FROM t.tx_hash OR t.final_at IS NOT NULL;
    t.event_seq := was.event_seq + tells::int + (confirmed IS NOT NULL)::int;
    PERFORM txm.added(p_step, t.tx_id, p_token, p_now);
    UPDATE txm.managed_tx m
       SET (state, sub_state, code, refusal, wish, resends, fork, cost_wei, tx_hash, receipt,
            receipt_number, receipt_hash, next_resubmit_at, last_submit_at, first_submit_at,
            confirmed_at, final_at, version, fencing_token, updated_at, event_seq)
         = (t.state, t.sub_state, t.code, t.refusal, t.wish, t.resends, t.fork, t.cost_wei,
            t.tx_hash, t.receipt, t.receipt_number, t.receipt_hash, t.next_resubmit_at,
            t.last_submit_at, t.first_submit_at, t.confirmed_at, t.final_at, t.version,
            t.fencing_token, t.updated_at, t.event_seq)
     WHERE m.tx_id = t.tx_id;
    IF passes OR p_step -> 'attempt' <> 'null' THEN
        INSERT INTO txm.tx_history (tx_id, version, token, at, attempts, from_state, state,
                                    sub_state, code, node)
        VALUES (t.tx_id, t.version, p_token, p_now, (p_step ->> 'attempts')::int, was.state,
                t.state, t.sub_state, t.code, p_node);
    END IF;
    IF confirmed IS NOT NULL THEN
        INSERT INTO txm.tx_events (epoch, xid, at, seq, new_fork, tx_id, kind, body)
        VALUES (my_epoch, my_xid, p_now, was.event_seq + 1, (confirmed -> 'new_fork')::boolean,
                t.tx_id, 'confirmations', txm.event_json(t) || jsonb_build_object(
                    'newFork', confirmed -> 'new_fork', 'fork', t.fork, 'receipt', t.receipt,
                    'confirmations', confirmed -> 'blocks'));
    END IF;
    IF tells THEN
        INSERT INTO txm.tx_events (epoch, xid, at, seq, new_fork, tx_id, kind, body)
        VALUES (my_epoch, my_xid, p_now, t.event_seq, FALSE, t.tx_id, 'state', txm.event_json(t));
    END IF;
    RETURN t;
END
$$;

-- Fenced: writes steps of rows of one signer, each a compare-and-set on the version. One answer a
-- step, in their order; NULL: another version, and nothing of it is written. A new attempt that
-- pays is not written for a suspended signer, also if a step before it suspended the signer. A
-- first payment that would pass the outflow limit is not written either, and suspends the signer.
-- So does a nonce that another transaction took, with its row.
CREATE FUNCTION txm.write(p_signer TEXT, p_me BIGINT, p_token BIGINT, p_steps JSONB, p_limits JSONB)
RETURNS SETOF TEXT LANGUAGE plpgsql AS $$
DECLARE
    my_node TEXT := (SELECT node_id FROM txm.nodes WHERE incarnation = p_me);
    step JSONB;
    was txm.managed_tx;
    pays BOOLEAN;
    is_first BOOLEAN;
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    FOR step IN SELECT value FROM jsonb_array_elements(p_steps) LOOP
        SELECT * INTO was FROM txm.managed_tx m
         WHERE m.tx_id = (step ->> 'id')::uuid AND m.signer = p_signer FOR UPDATE;
        IF NOT FOUND OR was.version <> (step ->> 'version')::bigint THEN
            -- A late twin of an attempt gets the stored one.
            IF was.tx_id IS NOT NULL AND EXISTS (
                SELECT FROM txm.tx_attempts a WHERE a.tx_id = was.tx_id
                   AND a.attempt = (step #>> '{attempt,number}')::int) THEN
                RETURN NEXT txm.tx_json(was)::text;
            ELSE
                RETURN NEXT NULL;
            END IF;
            CONTINUE;
        END IF;
        pays := COALESCE(step #>> '{attempt,kind}' IN ('1', '2'), FALSE);
        IF pays AND txm.is_suspended(p_signer) THEN
            RETURN NEXT NULL;
            CONTINUE;
        END IF;
        -- A step without an attempt has no first payment, and counts none: NULL AND would ask.
        is_first := pays AND step #>> '{attempt,number}' = '1' AND step #>> '{attempt,kind}' = '1';
        IF is_first AND txm.outflow_passes(p_signer, was.payload, p_limits) THEN
            PERFORM txm.suspension(p_signer, 'OUTFLOW_LIMIT', 'txm',
                                   format('asset %s: transaction %s would pass its limit',
                                          COALESCE(was.payload #>> '{token,contract}', 'native'),
                                          was.tx_id));
            RETURN NEXT NULL;
            CONTINUE;
        END IF;
        IF step ->> 'code' = '6' AND was.code IS DISTINCT FROM 6 THEN
            PERFORM txm.suspension(p_signer, 'NONCE_TAKEN', 'txm',
                                   format('nonce %s of transaction %s', was.nonce, was.tx_id));
        END IF;
        was := txm.write_once(was, step, p_token, my_node, txm.clock());
        RETURN NEXT txm.tx_json(was)::text;
    END LOOP;
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

-- Fenced: everything of a signer that its new owner must know. Kinds: suspended, cursor, tx (by
-- nonce those that are not final, ended ones among them, then the oldest 1000 of those without a
-- nonce), jumped, command. The others arrive.
CREATE FUNCTION txm.book(p_signer TEXT, p_me BIGINT, p_token BIGINT)
RETURNS TABLE (kind TEXT, body TEXT) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM txm.fence(p_signer, p_me, p_token);
    RETURN QUERY SELECT 'suspended', jsonb_build_object('reason', s.reason, 'actor', s.actor)::text
                   FROM txm.signer_suspensions s WHERE s.signer = p_signer ORDER BY s.reason;
    RETURN QUERY SELECT 'cursor', c.next_nonce::text
                   FROM txm.signer_nonce_cursor c WHERE c.signer = p_signer;
    RETURN QUERY SELECT 'tx', txm.tx_json(t)::text FROM txm.managed_tx t
                  WHERE t.signer = p_signer AND t.final_at IS NULL AND t.nonce IS NOT NULL
                  ORDER BY t.nonce;
    RETURN QUERY SELECT 'tx', txm.tx_json(t)::text FROM (
        SELECT * FROM txm.managed_tx m
         WHERE m.signer = p_signer AND m.nonce IS NULL AND m.final_at IS NULL
         ORDER BY m.tx_id LIMIT 1000) t;
    RETURN QUERY SELECT 'jumped', n::text FROM txm.nonce_jumps j
                  CROSS JOIN LATERAL generate_series(j.first_nonce, j.before_nonce - 1) n
                  WHERE j.signer = p_signer AND NOT EXISTS (
                      SELECT FROM txm.managed_tx t WHERE t.signer = p_signer AND t.nonce = n)
                  ORDER BY n;
    RETURN QUERY SELECT 'command', txm.command_json(c)::text FROM txm.tx_commands c
                  WHERE c.signer = p_signer AND c.state = 1 ORDER BY c.command_id;
END
$$;

-- Work that came to signers: rows without a nonce that are not known, the oldest first, at most
-- 100; rows without a nonce and with a deadline that has passed; open commands; suspensions.
CREATE FUNCTION txm.arrived(p_signers TEXT[], p_known UUID[])
RETURNS TABLE (kind TEXT, signer TEXT, body TEXT) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT 'tx', t.signer, txm.tx_json(t)::text FROM (
        SELECT r.* FROM unnest(p_signers) s (signer) CROSS JOIN LATERAL (
            SELECT * FROM txm.managed_tx m
             WHERE m.signer = s.signer AND m.nonce IS NULL AND m.final_at IS NULL
               AND m.tx_id <> ALL (p_known) AND m.state = 0
             ORDER BY m.tx_id LIMIT 100) r
         ORDER BY r.tx_id LIMIT 100) t;
    RETURN QUERY SELECT 'expired', m.signer, m.tx_id::text
                   FROM unnest(p_signers) s (signer)
                   JOIN txm.managed_tx m ON m.signer = s.signer AND m.nonce IS NULL
                    AND m.final_at IS NULL AND m.deadline <= txm.clock() AND m.state = 0;
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
