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
    BEFORE UPDATE OF transaction_id, round, participant, last, fingerprint, legs, payload
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
-- 'untried', 'repaired' (a row without an owner has its tx_id), 'number' (the
-- order number or the id is of no use).
CREATE FUNCTION transaction_accept(
    p_incarnation BIGINT, p_id UUID, p_order_number BIGINT, p_owner TEXT, p_tx_id TEXT,
    p_round SMALLINT, p_decide SMALLINT, p_at TIMESTAMPTZ, p_expires_at TIMESTAMPTZ,
    p_fingerprint BYTEA, p_participants TEXT[], p_last BOOLEAN[], p_legs TEXT[], p_payloads TEXT[])
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
        END IF;
        UPDATE transactions_tb
           SET rounds = p_round, updated_at = p_at, incarnation = p_incarnation
         WHERE transaction_id = v_there.transaction_id;
    END IF;
    INSERT INTO transaction_branches (transaction_id, participant, round, state, last, fingerprint,
                                      legs, payload, updated_at)
    SELECT v_there.transaction_id, b.participant, p_round, 10, b.last, p_fingerprint,
           b.legs::jsonb, b.payload::json, p_at
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

-- Writes moves, all in one commit. p_moves: an array of objects with the fields of TransactionMove.
-- Returns one letter for each: 'm' moved, 'c' it has another state or other rounds, 'h' a foreign
-- session holds it.
CREATE FUNCTION transaction_record(p_incarnation BIGINT, p_at TIMESTAMPTZ, p_moves JSONB)
RETURNS TEXT LANGUAGE plpgsql AS $$
DECLARE
    v_move    RECORD;
    v_state   SMALLINT;
    v_rounds  SMALLINT;
    v_decides BOOLEAN;
    v_results TEXT := '';
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    FOR v_move IN
        SELECT m.* FROM jsonb_array_elements(p_moves) WITH ORDINALITY AS e (move, place)
         CROSS JOIN LATERAL jsonb_to_record(e.move)
               AS m (id UUID, rounds SMALLINT, before SMALLINT, after SMALLINT, author TEXT,
                     code SMALLINT, detail TEXT, seal BOOLEAN, branches JSONB)
         ORDER BY e.place
    LOOP
        SELECT state, rounds INTO v_state, v_rounds FROM transactions_tb
         WHERE transaction_id = v_move.id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            PERFORM FROM transactions_tb WHERE transaction_id = v_move.id;
            v_results := v_results || CASE WHEN FOUND THEN 'h' ELSE 'c' END;
            CONTINUE;
        END IF;
        PERFORM FROM jsonb_to_recordset(v_move.branches)
                     AS m (party TEXT, round SMALLINT, before SMALLINT)
          WHERE NOT EXISTS (SELECT FROM transaction_branches b
                             WHERE b.transaction_id = v_move.id AND b.round = m.round
                               AND b.participant = m.party AND b.state = m.before);
        IF FOUND OR (v_state, v_rounds) IS DISTINCT FROM (v_move.before, v_move.rounds) THEN
            v_results := v_results || 'c';
            CONTINUE;
        END IF;
        UPDATE transaction_branches b
           SET state = m.after, updated_at = p_at, code = COALESCE(m.code, b.code),
               leg = COALESCE(m.leg, b.leg),
               participant_code = COALESCE(m.participant_code, b.participant_code),
               log_sequence = COALESCE(m.log_sequence, b.log_sequence)
          FROM jsonb_to_recordset(v_move.branches)
               AS m (party TEXT, round SMALLINT, after SMALLINT, code SMALLINT, leg SMALLINT,
                     participant_code TEXT, log_sequence BIGINT)
         WHERE b.transaction_id = v_move.id AND b.round = m.round AND b.participant = m.party;
        v_decides := v_state IN (0, 20) AND v_move.after NOT IN (0, 20);
        UPDATE transactions_tb
           SET state = v_move.after, updated_at = p_at, incarnation = p_incarnation,
               sealed = sealed OR v_decides OR v_move.seal,
               decided_at = CASE WHEN v_decides THEN p_at ELSE decided_at END,
               decided_by = CASE WHEN v_decides THEN v_move.author ELSE decided_by END,
               code = CASE WHEN v_decides THEN v_move.code ELSE code END,
               detail = COALESCE(v_move.detail, detail),
               finished_at = CASE WHEN v_move.after IN (40, -20) THEN p_at END,
               history = history
                   -- A decision that is carried out in the same commit has its passage too.
                   || CASE WHEN v_decides AND v_move.after IN (40, -20)
                           THEN transaction_passage(
                                   CASE v_move.after WHEN 40 THEN 30 ELSE -10 END::smallint,
                                   p_at, v_move.author, v_move.detail)
                           ELSE '[]' END
                   || CASE WHEN v_move.after <> v_state
                           THEN transaction_passage(
                                   v_move.after, p_at, v_move.author, v_move.detail)
                           ELSE '[]' END
         WHERE transaction_id = v_move.id;
        v_results := v_results || 'm';
    END LOOP;
    RETURN v_results;
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

-- The user of a leg's place in a branch of p_participant; NULL for a place that is not the store's
-- own. A plain number is the store's own available balance.
CREATE FUNCTION leg_user(p_place JSONB, p_participant TEXT) RETURNS BIGINT
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(p_place) = 'number' THEN p_place::bigint
                WHEN p_place ->> 'account' = p_participant THEN (p_place ->> 'user')::bigint END
$$;

-- The purpose of a leg's place, 0 for an available balance.
CREATE FUNCTION leg_purpose(p_place JSONB) RETURNS INTEGER LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(p_place) = 'object'
                THEN COALESCE((p_place ->> 'purpose')::integer, 0) ELSE 0 END
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
         WHERE t.order_number > p_after AND t.order_number <= p_until AND t.state = 40
    )
    SELECT d.id, d.user_id, d.asset_id,
           CASE WHEN h.hold_key IS NULL THEN 'is DONE, and Funding has no hold of it'
                ELSE format('is DONE with %s paid and %s received, and its hold in Funding is in '
                            'state %s with %s and %s',
                            d.taken, d.brought, h.state, h.taken, h.brought) END
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
                     OR h.brought::numeric - h.taken::numeric
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
        OR h.state = 40 AND t.state NOT IN (30, 40)
        OR t.state = 40
           AND NOT EXISTS (SELECT FROM transaction_booked(t.transaction_id) AS b
                            WHERE (b.user_id, b.asset_id, b.purpose)
                                  = (h.user_id, h.asset_id, h.purpose))
           AND (h.amount, h.taken, h.brought) <> (0, 0, 0)
     ORDER BY h.order_number, h.user_id, h.asset_id;
END
$$;

-- Transactions as people read them. The key finds one:
-- SELECT * FROM transactions WHERE owner = '...' AND tx_id = '...'
CREATE VIEW transactions AS
    SELECT order_number, ulid_text(transaction_id) AS transaction_id, owner, tx_id,
           transaction_state_name(state) AS state,
           CASE decide WHEN 1 THEN 'coordinator' WHEN 2 THEN 'caller' ELSE 'last' END AS decide,
           decided_by, decided_at, expires_at, rounds, code_name(code) AS code, detail, sealed,
           created_at, updated_at, finished_at, history
      FROM transactions_tb;

CREATE VIEW branches AS
    SELECT t.order_number, t.owner, t.tx_id,
           ulid_text(t.transaction_id) || ':' || b.participant || ':' || b.round AS branch_id,
           b.participant, b.round, branch_state_name(b.state) AS state, b.last, b.legs, b.payload,
           code_name(b.code) AS code, b.leg, b.participant_code, b.log_sequence, b.updated_at
      FROM transactions_tb t JOIN transaction_branches b USING (transaction_id);
