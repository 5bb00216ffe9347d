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

-- Lifts a suspension. Those that more than one operator or a comparison must end stay, with UB002.
CREATE FUNCTION txm.resume(p_signer TEXT, p_reason TEXT, p_actor TEXT, p_why TEXT) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
BEGIN
    IF p_reason IN ('OUTFLOW_LIMIT', 'NONCE_AHEAD', 'NONCE_TAKEN', 'DATABASE_RESTORED',
                    'DATABASE_OLDER') THEN
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

-- Adopts transactions of the chain without a row: the cursor goes behind them, each is a jump, and
-- the suspensions that a comparison must end are lifted.
CREATE FUNCTION txm.adopted(c txm.tx_commands, p_actor TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    upcoming BIGINT := (c.body ->> 'cursor')::bigint;
    was txm.signer_nonce_cursor;
BEGIN
    SELECT * INTO STRICT was FROM txm.signer_nonce_cursor n WHERE n.signer = c.signer FOR UPDATE;
    IF upcoming > was.next_nonce THEN
        -- Every nonce that is passed over was named by the operators.
        IF (SELECT count(DISTINCT key) FROM jsonb_object_keys(c.body -> 'foreign') key
             WHERE key::bigint >= was.next_nonce
               AND key::bigint < upcoming) < upcoming - was.next_nonce THEN
            RAISE EXCEPTION 'nonces % to % of % are not all named', was.next_nonce, upcoming - 1,
                c.signer USING ERRCODE = 'UB002';
        END IF;
        INSERT INTO txm.nonce_jumps
        VALUES (c.signer, was.next_nonce, upcoming, was.fencing_token, txm.clock());
        UPDATE txm.signer_nonce_cursor n SET next_nonce = upcoming, updated_at = txm.clock()
         WHERE n.signer = c.signer;
    END IF;
    PERFORM txm.lifted(c.signer, reason, p_actor, c.reason)
       FROM unnest('{NONCE_AHEAD,NONCE_TAKEN,DATABASE_RESTORED,DATABASE_OLDER}'::text[]) reason;
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
