-- Transactions: the tables of their states, their guards, and all statements that write their rows.
-- src/transaction.rs has the same tables; tests/schema.rs compares them.
--
-- States: 0 OPEN, 20 DECIDING, 30 COMMITTED, 40 DONE, -10 ABORTED, -20 CANCELLED.
-- Branches: 10 TRYING, 20 TRIED, 40 CONFIRMED, -10 REFUSED, -20 CANCELLED.

-- Whether a transaction in state p_old may be in state p_new some commits later.
CREATE FUNCTION transaction_state_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_old
        WHEN 0 THEN p_new IN (20, 30, 40, -10, -20)
        WHEN 20 THEN p_new IN (30, 40, -10, -20)
        WHEN 30 THEN p_new = 40
        WHEN -10 THEN p_new = -20
        ELSE FALSE
    END
$$;

-- The same of a branch.
CREATE FUNCTION branch_state_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_old
        WHEN 10 THEN p_new IN (20, 40, -10, -20)
        WHEN 20 THEN p_new IN (40, -20)
        ELSE FALSE
    END
$$;

-- The name of a state.
CREATE FUNCTION transaction_state_name(p_state SMALLINT) RETURNS TEXT
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_state WHEN 0 THEN 'OPEN' WHEN 20 THEN 'DECIDING' WHEN 30 THEN 'COMMITTED'
                        WHEN 40 THEN 'DONE' WHEN -10 THEN 'ABORTED' WHEN -20 THEN 'CANCELLED'
                        ELSE p_state::text END
$$;

-- The same of a branch.
CREATE FUNCTION branch_state_name(p_state SMALLINT) RETURNS TEXT
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_state WHEN 10 THEN 'TRYING' WHEN 20 THEN 'TRIED' WHEN 40 THEN 'CONFIRMED'
                        WHEN -10 THEN 'REFUSED' WHEN -20 THEN 'CANCELLED'
                        ELSE p_state::text END
$$;

-- A transaction only goes to states that follow its own. A final row stands, as does a decision.
CREATE FUNCTION transactions_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN (40, -20) THEN
        RAISE EXCEPTION 'transaction % is over: its row stands', ulid_text(OLD.transaction_id)
            USING ERRCODE = 'UB003';
    END IF;
    IF OLD.state <> NEW.state AND NOT transaction_state_admits(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'transaction % cannot go from state % to %',
            ulid_text(OLD.transaction_id), OLD.state, NEW.state USING ERRCODE = 'UB003';
    END IF;
    IF OLD.decided_at IS NOT NULL
       AND ((OLD.decided_at, OLD.decided_by, OLD.rounds, OLD.code)
            IS DISTINCT FROM (NEW.decided_at, NEW.decided_by, NEW.rounds, NEW.code)
            OR OLD.sealed AND NOT NEW.sealed) THEN
        RAISE EXCEPTION 'the decision about transaction % stands', ulid_text(OLD.transaction_id)
            USING ERRCODE = 'UB003';
    END IF;
    IF OLD.stores_ended_at IS DISTINCT FROM NEW.stores_ended_at THEN
        IF OLD.stores_ended_at IS NOT NULL THEN
            RAISE EXCEPTION 'the end of Funding and Spot in transaction % stands',
                ulid_text(OLD.transaction_id) USING ERRCODE = 'UB003';
        END IF;
        PERFORM FROM transaction_branches
          WHERE transaction_id = NEW.transaction_id AND participant IN ('FUNDING', 'SPOT')
            AND state IN (10, 20);
        IF FOUND THEN
            RAISE EXCEPTION 'Funding or Spot has not ended in transaction %',
                ulid_text(OLD.transaction_id) USING ERRCODE = 'UB003';
        END IF;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER transactions_guard BEFORE UPDATE ON transactions_tb
    FOR EACH ROW EXECUTE FUNCTION transactions_guard();
CREATE TRIGGER transactions_identity_guard
    BEFORE UPDATE OF transaction_id, order_number, owner, tx_id, decide, created_at, expires_at
    ON transactions_tb FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER transactions_delete_guard BEFORE DELETE ON transactions_tb
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- The same of a branch.
CREATE FUNCTION branches_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state IN (40, -10, -20) THEN
        RAISE EXCEPTION 'branch % of round % of transaction % is over: its row stands',
            OLD.participant, OLD.round, ulid_text(OLD.transaction_id) USING ERRCODE = 'UB003';
    END IF;
    IF OLD.state <> NEW.state AND NOT branch_state_admits(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'branch % of round % of transaction % cannot go from state % to %',
            OLD.participant, OLD.round, ulid_text(OLD.transaction_id), OLD.state, NEW.state
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER branches_guard BEFORE UPDATE ON transaction_branches
    FOR EACH ROW EXECUTE FUNCTION branches_guard();
CREATE TRIGGER branches_identity_guard
    BEFORE UPDATE OF transaction_id, round, participant, last, fingerprint, legs, payload,
                     followers
    ON transaction_branches FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER branches_delete_guard BEFORE DELETE ON transaction_branches
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- One entry of a history, as an array.
CREATE FUNCTION transaction_passage(
    p_state SMALLINT, p_at TIMESTAMPTZ, p_by TEXT, p_reason TEXT)
RETURNS JSONB LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'state', transaction_state_name(p_state),
        'at', to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'by', p_by, 'reason', p_reason)))
$$;

-- Accepts round p_round, or tells of the row under the name. The arrays have one element for
-- each branch. Returns 'new', 'taken', 'repeated', 'held' (a foreign session holds the row), or a
-- refusal: 'conflict', 'decided', 'aborted', 'rounds' (the decider takes no further one), 'order',
-- 'untried', 'repaired' (a row without an owner has its tx_id), 'special' (an account that the legs
-- book as special is so no longer, or an earlier round books it otherwise), 'number' (the order
-- number or the id is of no use).
CREATE FUNCTION transaction_accept(
    p_incarnation BIGINT, p_id UUID, p_order_number BIGINT, p_owner TEXT, p_tx_id TEXT,
    p_round SMALLINT, p_decide SMALLINT, p_at TIMESTAMPTZ, p_expires_at TIMESTAMPTZ,
    p_fingerprint BYTEA, p_participants TEXT[], p_last BOOLEAN[], p_legs TEXT[], p_payloads TEXT[],
    p_followers TEXT[])
RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_there  transactions_tb%ROWTYPE;
    v_before BYTEA;
    v_answer TEXT := 'taken';
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    SELECT * INTO v_there FROM transactions_tb WHERE owner = p_owner AND tx_id = p_tx_id;
    IF NOT FOUND THEN
        IF p_round <> 1 THEN
            RETURN 'order';
        END IF;
        -- A repair has written it from the log, which does not name owners. It may be this one, and
        -- must not be booked twice.
        PERFORM FROM transactions_tb WHERE owner = '?' AND tx_id = p_tx_id;
        IF FOUND THEN
            RETURN 'repaired';
        END IF;
        IF NOT special_stands(p_legs) THEN
            RETURN 'special';
        END IF;
        -- UBSCore may have forgotten outcomes below the watermark.
        INSERT INTO transactions_tb (transaction_id, order_number, owner, tx_id, state, decide,
                                     rounds, incarnation, created_at, updated_at, expires_at,
                                     history)
        SELECT p_id, p_order_number, p_owner, p_tx_id, 0, p_decide, 1, p_incarnation, p_at, p_at,
               p_expires_at, transaction_passage(0::smallint, p_at, p_owner, NULL)
         WHERE p_order_number >= (SELECT watermark FROM engine_state)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN 'number';
        END IF;
        v_there.transaction_id := p_id;
        v_answer := 'new';
    ELSE
        -- Rounds are never taken back, so this needs no lock.
        SELECT fingerprint INTO v_before FROM transaction_branches
         WHERE transaction_id = v_there.transaction_id AND round = p_round LIMIT 1;
        IF FOUND THEN
            RETURN CASE WHEN v_before = p_fingerprint THEN 'repeated' ELSE 'conflict' END;
        END IF;
        SELECT * INTO v_there FROM transactions_tb
         WHERE transaction_id = v_there.transaction_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN 'held';
        ELSIF v_there.state IN (-10, -20) THEN
            RETURN 'aborted';
        ELSIF v_there.state <> 0 THEN
            RETURN 'decided';
        ELSIF v_there.decide <> 2 THEN
            RETURN 'rounds';
        ELSIF v_there.rounds <> p_round - 1 THEN
            RETURN 'order';
        END IF;
        PERFORM FROM transaction_branches
          WHERE transaction_id = v_there.transaction_id AND state = 10;
        IF FOUND THEN
            RETURN 'untried';
        ELSIF NOT special_stands(p_legs)
              OR NOT special_agrees(v_there.transaction_id, p_participants, p_legs) THEN
            RETURN 'special';
        END IF;
        UPDATE transactions_tb
           SET rounds = p_round, updated_at = p_at, incarnation = p_incarnation
         WHERE transaction_id = v_there.transaction_id;
    END IF;
    INSERT INTO transaction_branches (transaction_id, participant, round, state, last, fingerprint,
                                      legs, payload, updated_at, followers)
    SELECT v_there.transaction_id, b.participant, p_round, 10, b.last, p_fingerprint,
           b.legs::jsonb, b.payload::json, p_at, p_followers
      FROM unnest(p_participants, p_last, p_legs, p_payloads)
           AS b (participant, last, legs, payload);
    RETURN v_answer;
END
$$;

-- Writes a cancelled transaction without a round under a name that nothing stands under: a round
-- that comes later runs into it.
CREATE FUNCTION transaction_cancel_unknown(
    p_incarnation BIGINT, p_id UUID, p_order_number BIGINT, p_owner TEXT, p_tx_id TEXT,
    p_decide SMALLINT, p_at TIMESTAMPTZ, p_expires_at TIMESTAMPTZ, p_code SMALLINT, p_by TEXT,
    p_reason TEXT)
RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    INSERT INTO transactions_tb (transaction_id, order_number, owner, tx_id, state, decide, rounds,
                                 code, sealed, incarnation, created_at, updated_at, expires_at,
                                 decided_by, decided_at, finished_at, detail, history)
    SELECT p_id, p_order_number, p_owner, p_tx_id, -20, p_decide, 0, p_code, TRUE, p_incarnation,
           p_at, p_at, p_expires_at, p_by, p_at, p_at, p_reason,
           transaction_passage((-10)::smallint, p_at, p_by, p_reason)
           || transaction_passage((-20)::smallint, p_at, p_by, p_reason)
     WHERE p_order_number >= (SELECT watermark FROM engine_state)
       AND NOT EXISTS (SELECT FROM transactions_tb WHERE owner = '?' AND tx_id = p_tx_id)
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- Writes the event of a transaction that is over, in the commit of that passage: a row for each
-- user of a leg that was booked or canceled, and deliveries to p_endpoints; of one that is DONE
-- also to the followers of the rounds that count. A branch that ends with its transaction has
-- the number of the transaction's state. One without legs to tell has no event.
-- src/events/webhooks.rs has the prefix of the followers' endpoints too.
CREATE FUNCTION transaction_tell(
    p_id UUID, p_event_id BIGINT, p_at TIMESTAMPTZ, p_endpoints TEXT[])
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_state SMALLINT;
BEGIN
    SELECT state INTO v_state FROM transactions_tb WHERE transaction_id = p_id;
    -- Streams continue behind the last id that they have read, so ids must rise with the commits. A
    -- call that its process has given up may still be running, and must not commit behind a later
    -- one.
    PERFORM pg_advisory_xact_lock(hashtext('transaction_events'));
    IF p_event_id <= (SELECT max(event_id) FROM transaction_events) THEN
        RAISE EXCEPTION 'event % of transaction % comes after a later one',
            p_event_id, ulid_text(p_id) USING ERRCODE = 'UB004';
    END IF;
    INSERT INTO transaction_events (event_id, user_id, transaction_id)
    SELECT DISTINCT p_event_id, side.user_id, p_id
      FROM transaction_branches b
     CROSS JOIN LATERAL jsonb_to_recordset(b.legs) AS l ("from" JSONB, "to" JSONB)
     CROSS JOIN LATERAL (VALUES (leg_user(l."from", b.participant)),
                                (leg_user(l."to", b.participant))) AS side (user_id)
     WHERE b.transaction_id = p_id AND b.state = v_state AND side.user_id IS NOT NULL;
    IF NOT FOUND AND v_state = -20 THEN
        RETURN;
    END IF;
    INSERT INTO webhook_deliveries (endpoint, event_id, req_id, states, at, next_at, kind)
    SELECT listeners.endpoint, p_event_id, p_id, ARRAY[v_state], p_at, clock_timestamp(), 2
      FROM (SELECT unnest(p_endpoints)
            UNION
            SELECT 'follower.' || follower
              FROM transaction_branches b CROSS JOIN unnest(b.followers) AS follower
             WHERE b.transaction_id = p_id AND b.state = 40 AND v_state = 40)
           AS listeners (endpoint);
END
$$;

-- The first events of a user's transactions after p_event.
CREATE FUNCTION transaction_events_after(p_user BIGINT, p_event BIGINT, p_rows INTEGER)
RETURNS TABLE (event_id BIGINT, transaction_id UUID)
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY SELECT e.event_id, e.transaction_id FROM transaction_events e
                  WHERE e.user_id = p_user AND e.event_id > p_event
                  ORDER BY e.event_id LIMIT p_rows;
END
$$;

-- The last one, 0 before the first.
CREATE FUNCTION transaction_events_last(p_user BIGINT) RETURNS BIGINT
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN COALESCE((SELECT max(e.event_id) FROM transaction_events e WHERE e.user_id = p_user), 0);
END
$$;

-- Writes moves, all in one commit. p_moves: an array of objects with the fields of TransactionMove;
-- at most one of a transaction may fit its row. p_event_first: the id of the first transaction that
-- is over; the next ones follow it. p_endpoints: those that get the event of each. Returns one
-- letter for each move: 'm' moved, 'c' it has another state or other rounds, 'h' a foreign session
-- holds it.
CREATE FUNCTION transaction_record(
    p_incarnation BIGINT, p_at TIMESTAMPTZ, p_moves JSONB, p_event_first BIGINT,
    p_endpoints TEXT[])
RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_event   BIGINT := p_event_first;
    v_over    UUID;
    v_ids     UUID[];
    v_locked  UUID[];
    v_fitting BIGINT[];  -- the places of the moves that fit, from 1
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    SELECT array_agg((e.move ->> 'id')::uuid ORDER BY e.place) INTO v_ids
      FROM jsonb_array_elements(p_moves) WITH ORDINALITY AS e (move, place);
    SELECT COALESCE(array_agg(l.transaction_id), '{}') INTO v_locked
      FROM (SELECT transaction_id FROM transactions_tb
             WHERE transaction_id = ANY (v_ids) FOR UPDATE SKIP LOCKED) AS l;
    -- A statement of its own: it sees what was committed before the locks.
    SELECT COALESCE(array_agg(m.place), '{}') INTO v_fitting
      FROM ROWS FROM (jsonb_to_recordset(p_moves)
                      AS (id UUID, rounds SMALLINT, before SMALLINT, branches JSONB))
           WITH ORDINALITY AS m (id, rounds, before, branches, place)
      JOIN transactions_tb t ON t.transaction_id = m.id
     WHERE m.id = ANY (v_locked) AND (t.state, t.rounds) = (m.before, m.rounds)
       AND NOT EXISTS (
           SELECT FROM jsonb_to_recordset(m.branches)
                       AS p (party TEXT, round SMALLINT, before SMALLINT)
            WHERE NOT EXISTS (SELECT FROM transaction_branches b
                               WHERE b.transaction_id = m.id AND b.round = p.round
                                 AND b.participant = p.party AND b.state = p.before));
    IF cardinality(v_fitting) <> (SELECT count(DISTINCT v_ids[f.place])
                                    FROM unnest(v_fitting) AS f (place)) THEN
        RAISE EXCEPTION 'two moves of one transaction in one commit';
    END IF;
    UPDATE transaction_branches b
       SET state = p.after, updated_at = p_at, code = COALESCE(p.code, b.code),
           leg = COALESCE(p.leg, b.leg),
           participant_code = COALESCE(p.participant_code, b.participant_code),
           log_sequence = COALESCE(p.log_sequence, b.log_sequence)
      FROM ROWS FROM (jsonb_to_recordset(p_moves) AS (id UUID, branches JSONB))
           WITH ORDINALITY AS m (id, branches, place)
     CROSS JOIN LATERAL jsonb_to_recordset(m.branches)
           AS p (party TEXT, round SMALLINT, after SMALLINT, code SMALLINT, leg SMALLINT,
                 participant_code TEXT, log_sequence BIGINT)
     WHERE m.place = ANY (v_fitting)
       AND b.transaction_id = m.id AND b.round = p.round AND b.participant = p.party;
    UPDATE transactions_tb t
       SET state = m.after, updated_at = p_at, incarnation = p_incarnation,
           sealed = t.sealed OR d.decides OR m.seal,
           decided_at = CASE WHEN d.decides THEN p_at ELSE t.decided_at END,
           decided_by = CASE WHEN d.decides THEN m.author ELSE t.decided_by END,
           code = CASE WHEN d.decides THEN m.code ELSE t.code END,
           detail = COALESCE(m.detail, t.detail),
           finished_at = CASE WHEN m.after IN (40, -20) THEN p_at END,
           -- From now on the watermark may pass: see watermark_raise.
           stores_ended_at = CASE WHEN m.stores_ended THEN COALESCE(t.stores_ended_at, p_at)
                                  ELSE t.stores_ended_at END,
           history = t.history
               || CASE WHEN m.note IS NOT NULL
                       THEN transaction_passage(m.before, p_at, m.note_by, m.note)
                       ELSE '[]' END
               -- A decision that is carried out in the same commit has its passage too.
               || CASE WHEN d.decides AND m.after IN (40, -20)
                       THEN transaction_passage(
                               CASE m.after WHEN 40 THEN 30 ELSE -10 END::smallint,
                               p_at, m.author, m.detail)
                       ELSE '[]' END
               || CASE WHEN m.after <> m.before
                       THEN transaction_passage(m.after, p_at, m.author, m.detail)
                       ELSE '[]' END
      FROM ROWS FROM (jsonb_to_recordset(p_moves)
                      AS (id UUID, before SMALLINT, after SMALLINT, author TEXT, code SMALLINT,
                          detail TEXT, seal BOOLEAN, stores_ended BOOLEAN, note_by TEXT,
                          note TEXT))
           WITH ORDINALITY AS m (id, before, after, author, code, detail, seal, stores_ended,
                                 note_by, note, place)
     CROSS JOIN LATERAL (SELECT m.before IN (0, 20) AND m.after NOT IN (0, 20)) AS d (decides)
     WHERE m.place = ANY (v_fitting) AND t.transaction_id = m.id;
    FOR v_over IN
        SELECT m.id
          FROM ROWS FROM (jsonb_to_recordset(p_moves) AS (id UUID, after SMALLINT))
               WITH ORDINALITY AS m (id, after, place)
         WHERE m.place = ANY (v_fitting) AND m.after IN (40, -20) ORDER BY m.place
    LOOP
        PERFORM transaction_tell(v_over, v_event, p_at, p_endpoints);
        v_event := v_event + 1;
    END LOOP;
    RETURN (
        SELECT string_agg(
                   CASE WHEN i.place = ANY (v_fitting) THEN 'm'
                        WHEN i.id = ANY (v_locked) THEN 'c'
                        WHEN EXISTS (SELECT FROM transactions_tb t WHERE t.transaction_id = i.id)
                        THEN 'h' ELSE 'c' END, '' ORDER BY i.place)
          FROM unnest(v_ids) WITH ORDINALITY AS i (id, place));
END
$$;

-- Accepts rounds, all in one commit. The arrays before p_places have one element for each round,
-- those from it on one for each branch; p_places: the round of each branch, counted from 1;
-- p_followers: a JSON array for each round. Returns
-- the word of transaction_accept for each. New transactions are written together.
CREATE FUNCTION transaction_accepts(
    p_incarnation BIGINT, p_ids UUID[], p_order_numbers BIGINT[], p_owners TEXT[], p_tx_ids TEXT[],
    p_rounds SMALLINT[], p_decides SMALLINT[], p_ats TIMESTAMPTZ[], p_expiries TIMESTAMPTZ[],
    p_fingerprints BYTEA[], p_followers TEXT[], p_places INTEGER[], p_participants TEXT[],
    p_last BOOLEAN[], p_legs TEXT[], p_payloads TEXT[])
RETURNS TEXT[] LANGUAGE plpgsql AS $$
DECLARE
    v_new     UUID[];
    v_unfit   INTEGER[] := '{}';
    v_answer  TEXT;
    v_answers TEXT[] := '{}';
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    IF array_to_string(p_legs, '') LIKE '%"special"%' THEN
        SELECT COALESCE(array_agg(b.place), '{}') INTO v_unfit
          FROM (SELECT place, array_agg(legs) AS legs
                  FROM unnest(p_places, p_legs) AS b (place, legs) GROUP BY place) AS b
         WHERE NOT special_stands(b.legs);
    END IF;
    -- The conditions of transaction_accept. It tells of those that do not fit, or that are there.
    WITH made AS (
        INSERT INTO transactions_tb (transaction_id, order_number, owner, tx_id, state, decide,
                                     rounds, incarnation, created_at, updated_at, expires_at,
                                     history)
        SELECT a.id, a.order_number, a.owner, a.tx_id, 0, a.decide, 1, p_incarnation, a.at, a.at,
               a.expires_at, transaction_passage(0::smallint, a.at, a.owner, NULL)
          FROM unnest(p_ids, p_order_numbers, p_owners, p_tx_ids, p_rounds, p_decides, p_ats,
                      p_expiries)
               WITH ORDINALITY
               AS a (id, order_number, owner, tx_id, round, decide, at, expires_at, place)
         WHERE a.round = 1 AND a.place <> ALL (v_unfit)
           AND a.order_number >= (SELECT watermark FROM engine_state)
           -- An insert would wait for a session that holds the row of this name.
           AND NOT EXISTS (SELECT FROM transactions_tb t
                            WHERE t.owner IN (a.owner, '?') AND t.tx_id = a.tx_id)
        ON CONFLICT DO NOTHING
        RETURNING transaction_id)
    SELECT COALESCE(array_agg(made.transaction_id), '{}') INTO v_new FROM made;
    INSERT INTO transaction_branches (transaction_id, participant, round, state, last, fingerprint,
                                      legs, payload, followers, updated_at)
    SELECT p_ids[b.place], b.participant, 1, 10, b.last, p_fingerprints[b.place], b.legs::jsonb,
           b.payload::json,
           ARRAY(SELECT jsonb_array_elements_text(p_followers[b.place]::jsonb)), p_ats[b.place]
      FROM unnest(p_places, p_participants, p_last, p_legs, p_payloads)
           AS b (place, participant, last, legs, payload)
     WHERE p_ids[b.place] = ANY (v_new);
    FOR v_place IN 1 .. cardinality(p_ids) LOOP
        v_answer := 'new';
        IF p_ids[v_place] <> ALL (v_new) THEN
            SELECT transaction_accept(
                       p_incarnation, p_ids[v_place], p_order_numbers[v_place], p_owners[v_place],
                       p_tx_ids[v_place], p_rounds[v_place], p_decides[v_place], p_ats[v_place],
                       p_expiries[v_place], p_fingerprints[v_place], array_agg(b.participant),
                       array_agg(b.last), array_agg(b.legs), array_agg(b.payload),
                       ARRAY(SELECT jsonb_array_elements_text(p_followers[v_place]::jsonb)))
              INTO v_answer
              FROM unnest(p_places, p_participants, p_last, p_legs, p_payloads)
                   AS b (place, participant, last, legs, payload)
             WHERE b.place = v_place;
        END IF;
        v_answers := array_append(v_answers, v_answer);
    END LOOP;
    RETURN v_answers;
END
$$;

-- One flight of the worker: moves and then rounds, in one commit. See transaction_record and
-- transaction_accepts.
CREATE FUNCTION transaction_flight(
    p_incarnation BIGINT, p_at TIMESTAMPTZ, p_moves JSONB, p_ids UUID[], p_order_numbers BIGINT[],
    p_owners TEXT[], p_tx_ids TEXT[], p_rounds SMALLINT[], p_decides SMALLINT[],
    p_ats TIMESTAMPTZ[], p_expiries TIMESTAMPTZ[], p_fingerprints BYTEA[], p_followers TEXT[],
    p_places INTEGER[], p_participants TEXT[], p_last BOOLEAN[], p_legs TEXT[], p_payloads TEXT[],
    p_event_first BIGINT, p_endpoints TEXT[],
    OUT moved TEXT, OUT accepted TEXT[]) LANGUAGE plpgsql AS $$
BEGIN
    moved := '';
    accepted := '{}';
    IF p_moves <> '[]' THEN
        moved := transaction_record(p_incarnation, p_at, p_moves, p_event_first, p_endpoints);
    END IF;
    IF cardinality(p_ids) > 0 THEN
        accepted := transaction_accepts(
            p_incarnation, p_ids, p_order_numbers, p_owners, p_tx_ids, p_rounds, p_decides, p_ats,
            p_expiries, p_fingerprints, p_followers, p_places, p_participants, p_last, p_legs,
            p_payloads);
    END IF;
END
$$;

-- Commits a transaction in the caller's own local transaction: it takes effect with the caller's
-- COMMIT, and its ROLLBACK decides nothing. A round that was refused as a whole counts for nothing.
-- A second call changes nothing.
--
-- The caller waits here if the service is just writing the row. The service never waits for the
-- caller: it passes over a row that a session holds. engine_state is read without a lock, because a
-- caller's transaction may last, and a start must not wait for it.
CREATE FUNCTION transaction_commit(p_owner TEXT, p_tx_id TEXT, p_rounds INTEGER) RETURNS VOID
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    v_there RECORD;
    v_by    TEXT := 'caller:' || session_user;
    v_now   TIMESTAMPTZ;
BEGIN
    PERFORM FROM transaction_grants WHERE role_name = session_user AND owner = p_owner;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'role % may not commit transactions of owner %', session_user, p_owner
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO v_there FROM transactions_tb
     WHERE owner = p_owner AND tx_id = p_tx_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no transaction % of owner %', p_tx_id, p_owner
            USING ERRCODE = 'UB012';
    ELSIF v_there.state IN (-10, -20) THEN
        RAISE EXCEPTION 'transaction % of owner % is aborted', p_tx_id, p_owner
            USING ERRCODE = 'UB010', DETAIL = COALESCE(code_name(v_there.code), '');
    ELSIF v_there.decide <> 2 THEN
        RAISE EXCEPTION 'transaction % of owner % is not its caller''s to decide', p_tx_id, p_owner
            USING ERRCODE = 'UB011';
    ELSIF v_there.rounds IS DISTINCT FROM p_rounds THEN
        RAISE EXCEPTION 'transaction % of owner % has % rounds, and not %',
            p_tx_id, p_owner, v_there.rounds, p_rounds USING ERRCODE = 'UB011';
    ELSIF v_there.state IN (30, 40) THEN
        RETURN;
    ELSIF (SELECT halted FROM engine_state) THEN
        RAISE EXCEPTION 'the service is halted: nothing is decided' USING ERRCODE = 'UB005';
    END IF;
    PERFORM FROM transaction_branches WHERE transaction_id = v_there.transaction_id
      GROUP BY round
     HAVING NOT (bool_and(state = 20) OR bool_and(state IN (-10, -20)))
            -- A refusal in a round with a service aborts the whole transaction.
            OR bool_or(state = -10) AND bool_or(participant NOT IN ('FUNDING', 'SPOT'));
    IF FOUND OR NOT EXISTS (SELECT FROM transaction_branches
                             WHERE transaction_id = v_there.transaction_id AND state = 20) THEN
        RAISE EXCEPTION 'transaction % of owner % is not tried in all its parts', p_tx_id, p_owner
            USING ERRCODE = 'UB011';
    END IF;
    v_now := clock_timestamp();
    UPDATE transactions_tb
       SET state = 30, decided_at = v_now, decided_by = v_by, updated_at = v_now,
           history = history || transaction_passage(30::smallint, v_now, v_by, NULL)
     WHERE transaction_id = v_there.transaction_id;
END
$$;

-- The places of Funding that a confirmed transaction has booked: paid and received by each.
CREATE FUNCTION transaction_booked(p_id UUID)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, purpose INTEGER, taken NUMERIC, brought NUMERIC)
LANGUAGE sql STABLE AS $$
    SELECT side.user_id, side.asset_id, side.purpose, sum(side.taken), sum(side.brought)
      FROM transaction_branches b
     CROSS JOIN LATERAL jsonb_to_recordset(b.legs)
           AS l ("from" JSONB, "to" JSONB, asset INTEGER, amount NUMERIC)
     CROSS JOIN LATERAL (
        VALUES (leg_user(l."from", 'FUNDING'), l.asset, leg_purpose(l."from"), l.amount, 0),
               (leg_user(l."to", 'FUNDING'), l.asset, leg_purpose(l."to"), 0, l.amount))
           AS side (user_id, asset_id, purpose, taken, brought)
     WHERE b.transaction_id = p_id AND b.participant = 'FUNDING' AND b.state = 40
       AND side.user_id IS NOT NULL
     GROUP BY side.user_id, side.asset_id, side.purpose
$$;

-- Differences between transactions and holds of Funding with order numbers above p_after, up to
-- p_until. Holds below the watermark may have been deleted; a hold that is there is compared.
CREATE FUNCTION audit_transactions(p_after BIGINT, p_until BIGINT)
RETURNS TABLE (transaction_id TEXT, user_id BIGINT, asset_id INTEGER, what TEXT)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    WITH done AS (
        SELECT ulid_text(t.transaction_id) AS id, t.order_number, b.*
          FROM transactions_tb t CROSS JOIN LATERAL transaction_booked(t.transaction_id) AS b
         WHERE t.order_number > p_after AND t.order_number <= p_until
           AND transaction_is_booked(t.state, t.stores_ended_at)
    )
    SELECT d.id, d.user_id, d.asset_id,
           CASE WHEN h.hold_key IS NULL THEN 'is booked, and Funding has no hold of it'
                ELSE format('is booked with %s paid and %s received, and its hold in Funding is in '
                            'state %s with %s and %s',
                            d.taken, d.brought, h.state, h.taken::numeric + h.withdrawn,
                            h.brought::numeric + h.deposited) END
      FROM done d
      LEFT JOIN funding_holds h
             ON h.hold_key = d.id || ':' || d.user_id || ':' || d.asset_id
                             || CASE WHEN d.purpose <> 0 THEN ':' || d.purpose ELSE '' END
     WHERE CASE WHEN h.hold_key IS NULL
                THEN d.order_number >= (SELECT watermark FROM engine_state)
                ELSE h.state <> 40 OR h.order_number <> d.order_number
                     OR (h.user_id, h.asset_id, h.purpose)
                        IS DISTINCT FROM (d.user_id, d.asset_id, d.purpose)
                     -- Money that a user passes on as it arrives is in no hold: the sums count.
                     OR h.brought::numeric - h.taken + h.deposited - h.withdrawn
                        IS DISTINCT FROM d.brought - d.taken END
     ORDER BY d.order_number, d.user_id, d.asset_id, d.purpose;
    RETURN QUERY
    WITH held AS (
        SELECT substr(h.hold_key, 1, 26) AS id, h.*
          FROM funding_holds h
         WHERE h.order_number > p_after AND h.order_number <= p_until AND h.state IN (10, 40)
           AND h.hold_key ~ '^[0-7][0-9A-HJKMNP-TV-Z]{25}:[0-9]+:[0-9]+(:[0-9]+)?$'
    )
    SELECT h.id, h.user_id, h.asset_id,
           format('is %s, and its hold in Funding is in state %s with %s',
                  COALESCE(transaction_state_name(t.state), 'unknown'), h.state, h.amount)
      FROM held h
      LEFT JOIN transactions_tb t ON t.transaction_id = ulid_uuid(h.id)
     WHERE t.state IS NULL OR t.state = -20
        -- A service may still owe the cancel of its own branch.
        OR t.state = -10 AND t.stores_ended_at IS NOT NULL
        OR h.state = 40 AND t.state NOT IN (30, 40)
        OR t.state = 40
           AND NOT EXISTS (SELECT FROM transaction_booked(t.transaction_id) AS b
                            WHERE (b.user_id, b.asset_id, b.purpose)
                                  = (h.user_id, h.asset_id, h.purpose))
           AND (h.amount, h.taken, h.brought, h.deposited, h.withdrawn) <> (0, 0, 0, 0, 0)
     ORDER BY h.order_number, h.user_id, h.asset_id;
    -- A settled hold has its money from and to the outside as external operations.
    RETURN QUERY
    SELECT substr(h.hold_key, 1, 26), h.user_id, h.asset_id,
           format('has a hold in Funding that was settled with %s from outside and %s to it, and '
                  'its external operations have %s and %s', h.deposited, h.withdrawn,
                  COALESCE(x.deposited, 0), COALESCE(x.withdrawn, 0))
      FROM funding_holds h
     CROSS JOIN LATERAL (
        SELECT sum(e.amount) FILTER (WHERE e.op = 4) AS deposited,
               sum(e.amount) FILTER (WHERE e.op = 5) AS withdrawn
          FROM external_operations e
         WHERE e.idem_key IN ('tx/' || h.hold_key || '/in', 'tx/' || h.hold_key || '/out')
           AND (e.user_id, e.asset_id) = (h.user_id, h.asset_id) AND e.code IS NULL) AS x
     WHERE h.order_number > p_after AND h.order_number <= p_until AND h.state = 40
       AND (h.deposited > 0 OR h.withdrawn > 0)
       AND (h.deposited, h.withdrawn)
           <> (COALESCE(x.deposited, 0), COALESCE(x.withdrawn, 0))
     ORDER BY h.order_number, h.user_id, h.asset_id;
END
$$;

-- Transactions that a read of both stores may see half booked: those that are being confirmed, and
-- those that Spot has booked behind record p_behind. By asset: the change of Funding by the holds
-- that are settled, the change of Spot by its legs from and to its outside, and of a booked one
-- (done) the money from outside of both stores less that to it.
CREATE FUNCTION transaction_bookings(p_behind BIGINT)
RETURNS TABLE (transaction_id UUID, order_number BIGINT, done BOOLEAN, asset_id INTEGER,
               funding NUMERIC, spot NUMERIC, outside NUMERIC)
LANGUAGE sql STABLE AS $$
    WITH moving AS MATERIALIZED (
        SELECT t.transaction_id AS id, t.order_number, FALSE AS done FROM transactions_tb t
         WHERE t.state NOT IN (40, -20) AND t.state = 30
           AND NOT transaction_is_booked(t.state, t.stores_ended_at)
        UNION
        SELECT t.transaction_id, t.order_number, TRUE
          FROM transaction_branches b JOIN transactions_tb t USING (transaction_id)
         WHERE b.participant = 'SPOT' AND b.state = 40 AND b.log_sequence > p_behind
           AND transaction_is_booked(t.state, t.stores_ended_at)
    ), legs AS MATERIALIZED (
        SELECT m.id, b.participant, l."from", l."to", l.asset, l.amount
          FROM moving m JOIN transaction_branches b ON b.transaction_id = m.id
         CROSS JOIN LATERAL jsonb_to_recordset(b.legs)
               AS l ("from" JSONB, "to" JSONB, asset INTEGER, amount NUMERIC)
         -- The legs of a refused round do not count, even before they are set back.
         WHERE b.state = 40
            OR b.state = 20
               AND NOT EXISTS (SELECT FROM transaction_branches o
                                WHERE o.transaction_id = b.transaction_id AND o.round = b.round
                                  AND o.state = -10)
    ), places AS (
        SELECT DISTINCT legs.id, place.user_id, legs.asset, place.purpose
          FROM legs CROSS JOIN LATERAL (
              VALUES (leg_user("from", 'FUNDING'), leg_purpose("from")),
                     (leg_user("to", 'FUNDING'), leg_purpose("to"))) AS place (user_id, purpose)
         WHERE participant = 'FUNDING' AND place.user_id IS NOT NULL
    ), parts AS (
        SELECT p.id, p.asset, h.brought::numeric - h.taken AS funding, 0 AS spot, 0 AS outside
          FROM places p
          JOIN funding_holds h
            ON h.state = 40
               AND h.hold_key = ulid_text(p.id) || ':' || p.user_id || ':' || p.asset
                                || CASE WHEN p.purpose <> 0 THEN ':' || p.purpose ELSE '' END
        UNION ALL
        SELECT id, asset, 0,
               CASE WHEN leg_user("from", 'SPOT') IS NULL THEN amount
                    WHEN leg_user("to", 'SPOT') IS NULL THEN -amount ELSE 0 END, 0
          FROM legs WHERE participant = 'SPOT'
        UNION ALL
        SELECT m.id, o.asset_id, 0, 0, o.deposited - o.withdrawn
          FROM moving m CROSS JOIN LATERAL transaction_outside(m.id) AS o WHERE m.done
    )
    SELECT m.id, m.order_number, m.done, p.asset, sum(p.funding), sum(p.spot), sum(p.outside)
      FROM moving m JOIN parts p USING (id)
     GROUP BY m.id, m.order_number, m.done, p.asset
$$;

-- The parts of one user in transactions that a read of both stores may see half booked, as
-- transaction_bookings finds them. funding: what the user's settled hold has changed on Funding;
-- settled: every hold of the transaction is; spot: the change on Spot by its legs, NULL if it has
-- none there.
CREATE FUNCTION transaction_parts_of_user(p_user BIGINT, p_behind BIGINT)
RETURNS TABLE (transaction_id UUID, order_number BIGINT, asset_id INTEGER, funding NUMERIC,
               spot NUMERIC, settled BOOLEAN)
LANGUAGE sql STABLE AS $$
    WITH moving AS MATERIALIZED (
        SELECT t.transaction_id AS id, t.order_number FROM transactions_tb t
         WHERE t.state NOT IN (40, -20) AND t.state = 30
           AND NOT transaction_is_booked(t.state, t.stores_ended_at)
        UNION
        SELECT t.transaction_id, t.order_number
          FROM transaction_branches b JOIN transactions_tb t USING (transaction_id)
         WHERE b.participant = 'SPOT' AND b.state = 40 AND b.log_sequence > p_behind
           AND transaction_is_booked(t.state, t.stores_ended_at)
    ), sides AS MATERIALIZED (
        SELECT m.id, m.order_number, b.participant, side.user_id, l.asset, side.change,
               ulid_text(m.id) || ':' || side.user_id || ':' || l.asset
               || CASE WHEN side.purpose <> 0 THEN ':' || side.purpose ELSE '' END AS hold_key
          FROM moving m JOIN transaction_branches b ON b.transaction_id = m.id
         CROSS JOIN LATERAL jsonb_to_recordset(b.legs)
               AS l ("from" JSONB, "to" JSONB, asset INTEGER, amount NUMERIC)
         CROSS JOIN LATERAL (
             VALUES (leg_user(l."from", b.participant), leg_purpose(l."from"), -l.amount),
                    (leg_user(l."to", b.participant), leg_purpose(l."to"), l.amount))
               AS side (user_id, purpose, change)
         WHERE b.participant IN ('FUNDING', 'SPOT')
           AND (b.state = 40
                OR b.state = 20
                   AND NOT EXISTS (SELECT FROM transaction_branches o
                                    WHERE o.transaction_id = b.transaction_id
                                      AND o.round = b.round AND o.state = -10))
    ), own AS (
        SELECT id, order_number, asset,
               COALESCE(sum(change) FILTER (WHERE participant = 'SPOT'), 0) AS spot
          FROM sides WHERE user_id = p_user GROUP BY id, order_number, asset
    )
    SELECT o.id, o.order_number, o.asset,
           COALESCE((SELECT sum(h.brought::numeric - h.taken)
                       FROM funding_holds h
                      WHERE h.state = 40
                        AND h.hold_key IN (
                            SELECT s.hold_key FROM sides s
                             WHERE s.id = o.id AND s.participant = 'FUNDING'
                               AND s.user_id = p_user AND s.asset = o.asset)), 0),
           CASE WHEN EXISTS (SELECT FROM sides s WHERE s.id = o.id AND s.participant = 'SPOT')
                THEN o.spot END,
           NOT EXISTS (
               SELECT FROM sides s
                WHERE s.id = o.id AND s.participant = 'FUNDING' AND s.user_id IS NOT NULL
                  AND NOT EXISTS (
                      SELECT FROM funding_holds h
                       WHERE h.hold_key = s.hold_key AND h.state = 40))
      FROM own o
$$;

-- Transactions as people read them. The key finds one:
-- SELECT * FROM transactions WHERE owner = '...' AND tx_id = '...'
CREATE VIEW transactions AS
    SELECT order_number, ulid_text(transaction_id) AS transaction_id, owner, tx_id,
           transaction_state_name(state) AS state,
           CASE decide WHEN 1 THEN 'coordinator' WHEN 2 THEN 'caller' ELSE 'last' END AS decide,
           decided_by, decided_at, expires_at, rounds, code_name(code) AS code, detail, sealed,
           created_at, updated_at, stores_ended_at, finished_at, history
      FROM transactions_tb;

CREATE VIEW branches AS
    SELECT t.order_number, t.owner, t.tx_id,
           ulid_text(t.transaction_id) || ':' || b.participant || ':' || b.round AS branch_id,
           b.participant, b.round, branch_state_name(b.state) AS state, b.last, b.legs, b.payload,
           code_name(b.code) AS code, b.leg, b.participant_code, b.log_sequence, b.updated_at
      FROM transactions_tb t JOIN transaction_branches b USING (transaction_id);
