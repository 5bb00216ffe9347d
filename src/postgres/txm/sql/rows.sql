-- A transaction as the process reads it, and its names.

CREATE FUNCTION txm.state_name(p_state SMALLINT) RETURNS TEXT LANGUAGE sql STABLE AS $$
    SELECT CASE p_state WHEN 0 THEN 'CREATED' WHEN 10 THEN 'ALLOCATED' WHEN 20 THEN 'SUBMITTED'
        WHEN 30 THEN 'TRACKING' WHEN 40 THEN 'CONFIRMED' WHEN -10 THEN 'FAILED' END
$$;

CREATE FUNCTION txm.sub_name(p_sub SMALLINT) RETURNS TEXT LANGUAGE sql STABLE AS $$
    SELECT ('{WAITING_FUNDS,SUSPENDED,WAITING_TURN,BLOCKED,PENDING,STALE,UNDERPRICED,MINED,REORGED,'
            'CANCELLING,FILLING,UNACCOUNTED,UNPROVEN}'::text[])[p_sub]
$$;

CREATE FUNCTION txm.fail_name(p_code SMALLINT) RETURNS TEXT LANGUAGE sql STABLE AS $$
    SELECT ('{REFUSED,EXPIRED,REVERTED,CANCELLED,FILLED,NONCE_TAKEN,UNPROVEN}'::text[])[p_code]
$$;

-- From one moment to a later one, 0 if it is earlier; NULL if one is missing.
CREATE FUNCTION txm.ms_between(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ) RETURNS BIGINT
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_to > p_from
                THEN floor(extract(EPOCH FROM p_to - p_from) * 1000)::bigint
                WHEN p_from IS NOT NULL AND p_to IS NOT NULL THEN 0 END
$$;

-- The row of a transaction, its attempts, and the confirmations of its present fork. Times are
-- durations from now on, milliseconds. Without `p_raw` the attempts' bytes are left out: `0x`.
CREATE FUNCTION txm.tx_json(t txm.managed_tx, p_raw BOOLEAN DEFAULT TRUE) RETURNS JSONB
LANGUAGE plpgsql AS $$
DECLARE
    now TIMESTAMPTZ := txm.clock();
    attempts JSONB := '[]';
    blocks JSONB := '[]';
BEGIN
    IF t.state NOT IN (0, 10) THEN
        SELECT COALESCE(jsonb_agg(jsonb_build_object(
                   'number', a.attempt, 'kind', a.kind,
                   'raw', CASE WHEN p_raw THEN txm.hex(a.raw) ELSE '0x' END,
                   'hash', txm.hex(a.tx_hash), 'max_fee', a.max_fee::text,
                   'max_tip', a.max_tip::text, 'gas', a.gas, 'class', a.class,
                   'was_in_pool', a.was_in_pool) ORDER BY a.attempt), '[]')
          INTO attempts FROM txm.tx_attempts a WHERE a.tx_id = t.tx_id;
    END IF;
    IF t.receipt IS NOT NULL THEN
        SELECT COALESCE(jsonb_agg(jsonb_build_object(
                   'number', c.block_number, 'hash', txm.hex(c.block_hash),
                   'parent', txm.hex(c.parent_hash)) ORDER BY c.block_number), '[]')
          INTO blocks FROM txm.tx_confirmations c WHERE c.tx_id = t.tx_id AND c.fork = t.fork;
    END IF;
    RETURN jsonb_build_object(
        'id', t.tx_id, 'signer', t.signer, 'request_id', t.request_id,
        'business_key', t.business_key, 'payload', t.payload, 'gas', t.gas_limit,
        'deadline_ms', txm.ms(t.deadline), 'nonce', t.nonce, 'state', t.state,
        'sub', t.sub_state, 'code', t.code, 'refusal', t.refusal, 'wish', t.wish,
        'version', t.version, 'resends', t.resends,
        'resubmit_in_ms', txm.ms_between(now, t.next_resubmit_at),
        'sent_since_ms', txm.ms_between(t.first_submit_at, now))
    || jsonb_build_object(
        'receipt', t.receipt, 'fork', t.fork, 'blocks', blocks, 'cost', t.cost_wei::text,
        'is_final', t.final_at IS NOT NULL, 'attempts', attempts);
END
$$;

-- The row with everything that is kept of it. In a list: without its history and raw bytes.
CREATE FUNCTION txm.details_json(t txm.managed_tx, p_history BOOLEAN) RETURNS JSONB
LANGUAGE sql AS $$
    SELECT jsonb_build_object(
        'tx', txm.tx_json(t, p_history), 'created_ms', txm.ms(t.created_at),
        'updated_ms', txm.ms(t.updated_at), 'confirmed_ms', txm.ms(t.confirmed_at),
        'final_ms', txm.ms(t.final_at),
        'attempts', COALESCE((
            SELECT jsonb_agg(jsonb_build_object(
                       'signed_ms', txm.ms(a.signed_at), 'answered_ms', txm.ms(a.answered_at),
                       'answers', a.answers) ORDER BY a.attempt)
              FROM txm.tx_attempts a WHERE a.tx_id = t.tx_id), '[]'),
        'history', COALESCE((
            SELECT jsonb_agg(jsonb_build_object(
                       'from', h.from_state, 'to', h.state, 'sub', h.sub_state, 'code', h.code,
                       'attempts', h.attempts, 'at_ms', txm.ms(h.at), 'node', h.node,
                       'token', h.token) ORDER BY h.version)
              FROM txm.tx_history h WHERE p_history AND h.tx_id = t.tx_id), '[]'))
$$;

-- A command as its owner reads it.
CREATE FUNCTION txm.command_json(c txm.tx_commands) RETURNS JSONB LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('id', c.command_id, 'tx', c.tx_id, 'what', c.what, 'body', c.body)
$$;

-- The body of an event of a state: the members of 003.
CREATE FUNCTION txm.event_json(t txm.managed_tx) RETURNS JSONB LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'txId', t.tx_id, 'signer', t.signer, 'requestId', t.request_id,
        'businessKey', t.business_key, 'nonce', t.nonce, 'state', txm.state_name(t.state),
        'subState', txm.sub_name(t.sub_state), 'code', txm.fail_name(t.code),
        'txHash', txm.hex(t.tx_hash), 'final', t.state IN (40, -10))
$$;

-- The names of the fields in which a request differs from the row that has its id; empty: the same.
CREATE FUNCTION txm.differences(t txm.managed_tx, p_fingerprint TEXT, p_business TEXT,
                                p_payload JSONB)
RETURNS TEXT[] LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN t.fingerprint = '' THEN '{}'
        WHEN t.fingerprint <> p_fingerprint
             AND t.payload = p_payload THEN '{payload}'
        ELSE ARRAY(SELECT key FROM unnest('{to,value,data,token,gas}'::text[]) key
                    WHERE t.fingerprint <> p_fingerprint AND t.payload -> key <> p_payload -> key)
             || CASE WHEN t.business_key IS DISTINCT FROM p_business
                     THEN '{businessKey}'::text[] ELSE '{}' END
    END
$$;
