-- Time, leases and the fence.

-- The one reader of time. Tests replace it.
CREATE FUNCTION txm.clock() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- The one definition of a live lease: of the fence, the renewal and the take-over. An end that is
-- too far ahead was written before the clock stepped back.
CREATE FUNCTION txm.alive(p_expires_at TIMESTAMPTZ) RETURNS BOOLEAN LANGUAGE sql VOLATILE AS $$
    SELECT n.at < p_expires_at + s.lease_skew
       AND p_expires_at <= n.at + s.lease_duration + s.lease_skew
      FROM txm.settings s, (SELECT txm.clock() AS at) n
$$;

-- A UUID of version 7 at a time.
CREATE FUNCTION txm.uuid7(p_at TIMESTAMPTZ) RETURNS UUID LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(
             uuid_send(gen_random_uuid())
             PLACING substring(int8send(floor(extract(EPOCH FROM p_at) * 1000)::bigint) FROM 3)
             FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

CREATE FUNCTION txm.ms(p_at TIMESTAMPTZ) RETURNS BIGINT LANGUAGE sql STABLE
    AS 'SELECT floor(extract(EPOCH FROM p_at) * 1000)::bigint';

CREATE FUNCTION txm.hex(p_bytes BYTEA) RETURNS TEXT LANGUAGE sql STABLE
    AS $$SELECT '0x' || encode(p_bytes, 'hex')$$;

CREATE FUNCTION txm.bytes(p_hex TEXT) RETURNS BYTEA LANGUAGE sql STABLE
    AS $$SELECT decode(substr(p_hex, 3), 'hex')$$;

-- The timeline of this server: another one behind a failover or a restore.
CREATE FUNCTION txm.timeline() RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
$$;

-- Whether the rows are still on the server that the nodes know. Changes nothing.
CREATE FUNCTION txm.is_same_server() RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
    SELECT s.system_identifier = c.system_identifier AND s.timeline = txm.timeline()
      FROM txm.settings s, pg_control_system() c
$$;

-- Suspends every signer of a database that may be an older copy. The chain is compared before a
-- person lifts that. Each lease ends: its owner knows rows and nonces that this copy may lack, so
-- it reads its book anew. The caller has locked the settings.
CREATE FUNCTION txm.suspend_all(p_about TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    -- Behind the fenced writes that are under way.
    PERFORM FROM txm.signer_lease ORDER BY signer FOR UPDATE;
    INSERT INTO txm.signer_suspensions (signer, reason, actor, about, at)
    SELECT signer, 'DATABASE_RESTORED', 'txm', p_about, txm.clock() FROM txm.signers ORDER BY signer
        ON CONFLICT (signer, reason) DO UPDATE SET again_at = EXCLUDED.at;
    UPDATE txm.signer_lease SET expires_at = '-infinity', updated_at = txm.clock();
END
$$;

-- Suspends every signer if the rows have come to another server.
CREATE FUNCTION txm.same_server() RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    here BIGINT := (SELECT system_identifier FROM pg_control_system());
    line BIGINT := txm.timeline();
    was txm.settings;
BEGIN
    SELECT * INTO was FROM txm.settings;
    IF was.system_identifier = here AND was.timeline = line THEN
        RETURN TRUE;
    END IF;
    SELECT * INTO was FROM txm.settings FOR UPDATE;
    IF was.system_identifier = here AND was.timeline = line THEN
        RETURN TRUE;
    END IF;
    PERFORM txm.suspend_all(format('server %s timeline %s, before %s timeline %s', here, line,
                                   was.system_identifier, was.timeline));
    UPDATE txm.settings
       -- Another line of the same cluster may use its xids again.
       SET epoch = epoch + 1, system_identifier = here, timeline = line;
    RETURN FALSE;
END
$$;

-- Keeps the nonces that a node has seen signed beside the suspension of each signer with a lower
-- cursor: they may be under way.
CREATE FUNCTION txm.keep_seen(p_seen JSONB) RETURNS VOID LANGUAGE sql AS $$
    UPDATE txm.signer_suspensions u SET seen_nonce = (e.value ->> 'signed')::bigint
      FROM jsonb_each(p_seen) e JOIN txm.signer_nonce_cursor c ON c.signer = e.key
     WHERE u.signer = e.key AND u.reason = 'DATABASE_RESTORED'
       AND (e.value ->> 'signed')::bigint > GREATEST(c.next_nonce, u.seen_nonce)
$$;

-- Compares the rows with the numbers that a node has seen: {signer: {epoch, token, nonce, signed}}.
-- Rows that show less are an older copy: every signer is suspended, and the epoch rises above each
-- one that was seen. Numbers of an earlier epoch have suspended all signers already, but for one
-- that was added since, without a lease. A signed nonce counts in every epoch, since it may be
-- mined. Returns the epoch, the signers that are known here, and the difference if there is one.
CREATE FUNCTION txm.compare_seen(p_seen JSONB)
RETURNS TABLE (epoch BIGINT, known TEXT[], difference TEXT) LANGUAGE plpgsql AS $$
DECLARE
    here BIGINT;
    is_kept BOOLEAN := FALSE;
    highest BIGINT := (SELECT max((e.value ->> 'epoch')::bigint) FROM jsonb_each(p_seen) e);
BEGIN
    PERFORM txm.same_server();
    known := ARRAY(SELECT s.signer FROM txm.signers s WHERE p_seen ? s.signer);
    LOOP
        SELECT s.epoch INTO STRICT here FROM txm.settings s;
        SELECT format('signer %s has token %s and nonce %s in epoch %s; seen were token %s and '
                      'nonce %s in epoch %s', e.key, COALESCE(l.fencing_token, 0),
                      COALESCE(c.next_nonce, 0), here, e.token, e.nonce, e.epoch)
          INTO difference
          FROM (SELECT key, (value ->> 'epoch')::bigint AS epoch,
                       (value ->> 'token')::bigint AS token, (value ->> 'nonce')::bigint AS nonce,
                       (value ->> 'signed')::bigint AS signed
                  FROM jsonb_each(p_seen)) e
          LEFT JOIN txm.signers s ON s.signer = e.key
          LEFT JOIN txm.signer_lease l ON l.signer = e.key
          LEFT JOIN txm.signer_nonce_cursor c ON c.signer = e.key
          LEFT JOIN txm.signer_suspensions u
            ON u.signer = e.key AND u.reason = 'DATABASE_RESTORED'
         WHERE e.epoch > here
            OR e.epoch = here AND (COALESCE(l.fencing_token, 0) < e.token
                                   OR COALESCE(c.next_nonce, 0) < e.nonce)
            OR e.epoch < here AND e.token > 0 AND s.signer IS NOT NULL AND l.signer IS NULL
            OR c.next_nonce < e.signed AND u.signer IS NULL
         ORDER BY e.key LIMIT 1;
        epoch := here;
        IF difference IS NULL THEN
            PERFORM txm.keep_seen(p_seen);
            -- An adoption may have lifted a suspension meanwhile.
            IF is_kept THEN
                RETURN NEXT;
                RETURN;
            END IF;
            is_kept := TRUE;
            CONTINUE;
        END IF;
        -- Another node may have found the same a moment ago.
        PERFORM FROM txm.settings s WHERE s.epoch = here FOR UPDATE;
        EXIT WHEN FOUND;
    END LOOP;
    PERFORM txm.suspend_all(difference);
    PERFORM txm.keep_seen(p_seen);
    UPDATE txm.settings s SET epoch = GREATEST(here, highest) + 1 RETURNING s.epoch INTO epoch;
    RETURN NEXT;
END
$$;

-- Binds the database to a chain, or compares. Settings of the lease change only while none is
-- alive. Returns NULL, or the difference.
CREATE FUNCTION txm.bind(p_chain BIGINT, p_genesis TEXT, p_duration_ms BIGINT, p_skew_ms BIGINT)
RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    duration INTERVAL := p_duration_ms * INTERVAL '1 millisecond';
    skew INTERVAL := p_skew_ms * INTERVAL '1 millisecond';
    was txm.settings;
BEGIN
    INSERT INTO txm.settings
    SELECT TRUE, p_chain, txm.bytes(p_genesis), duration, skew, system_identifier,
           txm.timeline(), 1
      FROM pg_control_system()
        ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT was FROM txm.settings FOR UPDATE;
    IF (was.chain_id, was.genesis_hash) <> (p_chain, txm.bytes(p_genesis)) THEN
        RETURN format('chain: it has chain %s, block 0 %s; this node has chain %s, block 0 %s',
                      was.chain_id, txm.hex(was.genesis_hash), p_chain, p_genesis);
    END IF;
    PERFORM txm.same_server();
    IF (was.lease_duration, was.lease_skew) = (duration, skew) THEN
        RETURN NULL;
    END IF;
    LOCK TABLE txm.signer_lease IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM txm.signer_lease WHERE txm.alive(expires_at)) THEN
        RETURN format('lease: it has duration %s and skew %s; this node has %s and %s',
                      was.lease_duration, was.lease_skew, duration, skew);
    END IF;
    UPDATE txm.settings SET lease_duration = duration, lease_skew = skew;
    RETURN NULL;
END
$$;

-- The row of a process that begins: its number, for ever.
CREATE FUNCTION txm.begin(p_node TEXT, p_url TEXT, p_signers TEXT[]) RETURNS BIGINT
LANGUAGE sql AS $$
    INSERT INTO txm.nodes (node_id, url, signers, started_at, seen_at)
    SELECT p_node, p_url, p_signers, at, at FROM (SELECT txm.clock() AS at) n
    RETURNING incarnation
$$;

-- No row: the signer is unknown. `token` is NULL: another process owns it.
CREATE FUNCTION txm.acquire(p_signer TEXT, p_me BIGINT)
RETURNS TABLE (token BIGINT, node TEXT, url TEXT) LANGUAGE plpgsql AS $$
DECLARE
    me txm.nodes;
    l txm.signer_lease;
    duration INTERVAL := (SELECT lease_duration FROM txm.settings);
BEGIN
    IF NOT EXISTS (SELECT FROM txm.signers s WHERE s.signer = p_signer) THEN
        RETURN;
    END IF;
    SELECT * INTO STRICT me FROM txm.nodes n WHERE n.incarnation = p_me;
    IF NOT p_signer = ANY (me.signers) THEN
        RAISE EXCEPTION 'node % cannot sign for %', me.node_id, p_signer USING ERRCODE = 'UB002';
    END IF;
    PERFORM txm.same_server();
    SELECT * INTO l FROM txm.signer_lease s WHERE s.signer = p_signer;
    IF NOT FOUND THEN
        INSERT INTO txm.signer_lease
        SELECT p_signer, me.node_id, p_me, 1, n.at + duration, n.at
          FROM (SELECT txm.clock() AS at) n
            ON CONFLICT DO NOTHING;
    END IF;
    -- Without a lock where another one is alive.
    IF l.signer IS NULL OR NOT txm.alive(l.expires_at) OR l.owner_incarnation = p_me THEN
        -- Waits for a process that writes under the old token.
        SELECT * INTO STRICT l FROM txm.signer_lease s WHERE s.signer = p_signer FOR UPDATE;
        IF NOT txm.alive(l.expires_at) THEN
            UPDATE txm.signer_lease s
               SET owner_node = me.node_id, owner_incarnation = p_me,
                   fencing_token = s.fencing_token + 1, expires_at = n.at + duration,
                   updated_at = n.at
              FROM (SELECT txm.clock() AS at) n WHERE s.signer = p_signer
            RETURNING s.* INTO l;
        ELSIF l.owner_incarnation = p_me THEN
            UPDATE txm.signer_lease s SET expires_at = n.at + duration, updated_at = n.at
              FROM (SELECT txm.clock() AS at) n WHERE s.signer = p_signer;
        END IF;
    END IF;
    IF l.owner_incarnation = p_me THEN
        RETURN QUERY SELECT l.fencing_token, me.node_id, me.url;
    ELSE
        RETURN QUERY SELECT NULL::bigint, n.node_id, n.url FROM txm.nodes n
                      WHERE n.incarnation = l.owner_incarnation;
    END IF;
END
$$;

-- Refuses a process that does not own the signer under this token, or that owned it on another
-- server. The row stays locked until this write's commit, so that a take-over waits for it. EXISTS
-- would not lock, and so not fence. A renewal changes no key and does not wait for this lock; a
-- take-over locks the whole row, and does.
CREATE FUNCTION txm.fence(p_signer TEXT, p_me BIGINT, p_token BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
    until TIMESTAMPTZ;
BEGIN
    SELECT l.expires_at INTO until FROM txm.signer_lease l
     WHERE l.signer = p_signer AND l.owner_incarnation = p_me AND l.fencing_token = p_token
       FOR KEY SHARE;
    IF NOT FOUND OR NOT txm.alive(until) OR NOT txm.is_same_server() THEN
        RAISE EXCEPTION 'signer % is not owned by process % under token %', p_signer, p_me, p_token
            USING ERRCODE = 'UB001', DETAIL = COALESCE((
                SELECT l.fencing_token FROM txm.signer_lease l
                 WHERE l.signer = p_signer)::text, '');
    END IF;
END
$$;

-- Whether a signer is suspended. Read behind the fence: its lock orders this with suspensions.
CREATE FUNCTION txm.is_suspended(p_signer TEXT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM txm.signer_suspensions s WHERE s.signer = p_signer);
END
$$;

-- Renews the live leases of a process, and marks it as seen.
CREATE FUNCTION txm.renew(p_me BIGINT) RETURNS TABLE (signer TEXT, token BIGINT)
LANGUAGE plpgsql AS $$
DECLARE
    owned TEXT[];
BEGIN
    PERFORM txm.same_server();
    -- One that has left renews while it drains, and counts in no share.
    UPDATE txm.nodes n SET seen_at = txm.clock()
     WHERE n.incarnation = p_me AND n.seen_at > '-infinity';
    -- Two steps: the lock may wait for a take-over, and the time is read behind it. It waits for no
    -- fenced write, so that a slow one costs no other lease.
    SELECT array_agg(l.signer) INTO owned FROM (
        SELECT l.signer FROM txm.signer_lease l WHERE l.owner_incarnation = p_me
         ORDER BY l.signer FOR NO KEY UPDATE) l;
    RETURN QUERY
    UPDATE txm.signer_lease l SET expires_at = n.at + n.lease_duration, updated_at = n.at
      FROM (SELECT txm.clock() AS at, s.lease_duration FROM txm.settings s) n
     WHERE l.signer = ANY (owned) AND l.owner_incarnation = p_me AND txm.alive(l.expires_at)
    RETURNING l.signer, l.fencing_token;
END
$$;

-- Ends a lease at once. The token stays. Every node hears of it, and looks for signers without an
-- owner.
CREATE FUNCTION txm.release(p_signer TEXT, p_me BIGINT, p_token BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM txm.signer_lease l
      WHERE l.signer = p_signer AND l.owner_incarnation = p_me AND l.fencing_token = p_token
        FOR UPDATE;
    PERFORM txm.fence(p_signer, p_me, p_token);
    UPDATE txm.signer_lease l SET expires_at = '-infinity', updated_at = txm.clock()
     WHERE l.signer = p_signer;
    PERFORM pg_notify('txm', 'freed');
END
$$;

-- Signers of this process with rows that are not final or commands and without a live lease: those
-- with open work first, of them the oldest. And the numbers that a fair share is made of: a row
-- that ended and is still looked at counts in none. `next_end_ms`: until the first lease of another
-- process may end, of a signer of this one with work. `unowned`: of all signers with open rows,
-- those without a live lease.
CREATE FUNCTION txm.wanting(p_me BIGINT, p_most INTEGER)
RETURNS TABLE (signers TEXT[], live_nodes BIGINT, open_signers BIGINT, next_end_ms BIGINT,
               unowned BIGINT)
LANGUAGE sql AS $$
    WITH works AS MATERIALIZED (
        SELECT s.signer, LEAST(row.since, unnumbered.since, command.since) AS since,
               unnumbered.since IS NOT NULL OR row.since IS NOT NULL AND EXISTS (
                   SELECT FROM txm.managed_tx t
                    WHERE t.signer = s.signer AND t.final_at IS NULL
                      AND t.state NOT IN (40, -10)) AS has_rows,
               command.since IS NOT NULL AS has_commands
          FROM txm.signers s
          LEFT JOIN LATERAL (
              SELECT created_at AS since FROM txm.managed_tx t
               WHERE t.signer = s.signer AND t.final_at IS NULL
               ORDER BY t.nonce LIMIT 1) row ON TRUE
          LEFT JOIN LATERAL (
              SELECT created_at AS since FROM txm.managed_tx t
               WHERE t.signer = s.signer AND t.nonce IS NULL AND t.final_at IS NULL
               ORDER BY t.tx_id LIMIT 1) unnumbered ON TRUE
          LEFT JOIN LATERAL (
              SELECT at AS since FROM txm.tx_commands c
               WHERE c.signer = s.signer AND c.state = 1
               ORDER BY c.command_id LIMIT 1) command ON TRUE)
    SELECT COALESCE((
               SELECT array_agg(w.signer ORDER BY w.is_over, w.since, w.signer) FROM (
                   SELECT w.signer, w.since, NOT (w.has_rows OR w.has_commands) AS is_over
                     FROM works w
                     LEFT JOIN txm.signer_lease l ON l.signer = w.signer
                    WHERE w.since IS NOT NULL AND (l.signer IS NULL OR NOT txm.alive(l.expires_at))
                      AND w.signer = ANY ((SELECT n.signers FROM txm.nodes n
                                            WHERE n.incarnation = p_me)::text[])
                    ORDER BY is_over, w.since, w.signer LIMIT p_most) w), '{}'),
           (SELECT count(*) FROM txm.nodes n
             WHERE n.seen_at > txm.clock() - (SELECT lease_duration FROM txm.settings)),
           (SELECT count(*) FROM works w WHERE w.has_rows),
           (SELECT ceil(extract(EPOCH FROM min(l.expires_at) + (SELECT lease_skew FROM txm.settings)
                                           - txm.clock()) * 1000)::bigint
              FROM works w JOIN txm.signer_lease l ON l.signer = w.signer
             WHERE w.since IS NOT NULL AND l.owner_incarnation <> p_me AND txm.alive(l.expires_at)
               AND w.signer = ANY ((SELECT n.signers FROM txm.nodes n
                                     WHERE n.incarnation = p_me)::text[])),
           (SELECT count(*) FROM works w LEFT JOIN txm.signer_lease l ON l.signer = w.signer
             WHERE w.has_rows AND (l.signer IS NULL OR NOT txm.alive(l.expires_at)))
$$;
