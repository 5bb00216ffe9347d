-- Guards: triggers that refuse a change that would break a law, with UB003. They hold against every
-- role, and against a mistake in the program.

-- Whether some events lead from a state to another one.
CREATE FUNCTION txm.state_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT CASE p_old
        WHEN 0 THEN p_new IN (10, 20, 30, 40, -10)
        WHEN 10 THEN p_new IN (20, 30, 40, -10)
        WHEN 20 THEN p_new IN (30, 40, -10)
        WHEN 30 THEN p_new IN (40, -10)
        ELSE FALSE END
$$;

CREATE FUNCTION txm.managed_tx_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.tx_id, OLD.signer, OLD.request_id, OLD.fingerprint, OLD.payload, OLD.created_at)
       <> (NEW.tx_id, NEW.signer, NEW.request_id, NEW.fingerprint, NEW.payload, NEW.created_at)
       OR (OLD.business_key, OLD.deadline) IS DISTINCT FROM (NEW.business_key, NEW.deadline) THEN
        RAISE EXCEPTION 'the request of transaction % stands', OLD.tx_id USING ERRCODE = 'UB003';
    END IF;
    IF OLD.nonce IS NOT NULL
       AND (NEW.nonce, NEW.gas_limit) IS DISTINCT FROM (OLD.nonce, OLD.gas_limit) THEN
        RAISE EXCEPTION 'the nonce of transaction % stands', OLD.tx_id USING ERRCODE = 'UB003';
    END IF;
    IF OLD.final_at IS NOT NULL THEN
        RAISE EXCEPTION 'transaction % is final', OLD.tx_id USING ERRCODE = 'UB003';
    END IF;
    IF OLD.state <> NEW.state AND NOT txm.state_admits(OLD.state, NEW.state)
       OR OLD.state IN (40, -10)
          AND ((OLD.code, OLD.refusal, OLD.confirmed_at, OLD.tx_hash, OLD.receipt_hash)
               IS DISTINCT FROM
               (NEW.code, NEW.refusal, NEW.confirmed_at, NEW.tx_hash, NEW.receipt_hash)
               OR OLD.cost_wei IS NOT NULL AND OLD.cost_wei IS DISTINCT FROM NEW.cost_wei) THEN
        RAISE EXCEPTION 'transaction % cannot go from state % to %', OLD.tx_id, OLD.state, NEW.state
            USING ERRCODE = 'UB003';
    END IF;
    IF NEW.fencing_token < OLD.fencing_token OR NEW.version <> OLD.version + 1
       OR NEW.fork < OLD.fork OR NEW.event_seq < OLD.event_seq THEN
        RAISE EXCEPTION 'a write to transaction % is late: token % below %, or version % behind %',
            OLD.tx_id, NEW.fencing_token, OLD.fencing_token, NEW.version, OLD.version
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER managed_tx_guard BEFORE UPDATE ON txm.managed_tx
    FOR EACH ROW EXECUTE FUNCTION txm.managed_tx_guard();

CREATE FUNCTION txm.signer_lease_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.signer <> OLD.signer
       OR NEW.fencing_token NOT IN (OLD.fencing_token, OLD.fencing_token + 1)
       OR NEW.owner_incarnation <> OLD.owner_incarnation
          AND NEW.fencing_token <> OLD.fencing_token + 1 THEN
        RAISE EXCEPTION 'the token of % goes from % to % (owner % to %)', OLD.signer,
            OLD.fencing_token, NEW.fencing_token, OLD.owner_incarnation, NEW.owner_incarnation
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER signer_lease_guard BEFORE UPDATE ON txm.signer_lease
    FOR EACH ROW EXECUTE FUNCTION txm.signer_lease_guard();

CREATE FUNCTION txm.signer_nonce_cursor_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.signer <> OLD.signer OR NEW.next_nonce < OLD.next_nonce
       OR NEW.fencing_token < OLD.fencing_token THEN
        RAISE EXCEPTION 'the cursor of % falls from % to %, or its token from % to %', OLD.signer,
            OLD.next_nonce, NEW.next_nonce, OLD.fencing_token, NEW.fencing_token
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER signer_nonce_cursor_guard BEFORE UPDATE ON txm.signer_nonce_cursor
    FOR EACH ROW EXECUTE FUNCTION txm.signer_nonce_cursor_guard();

CREATE FUNCTION txm.tx_attempts_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.tx_id, OLD.attempt, OLD.kind, OLD.gas, OLD.fencing_token, OLD.signed_at, OLD.max_fee,
        OLD.max_tip, OLD.tx_hash, OLD.raw)
       <> (NEW.tx_id, NEW.attempt, NEW.kind, NEW.gas, NEW.fencing_token, NEW.signed_at, NEW.max_fee,
           NEW.max_tip, NEW.tx_hash, NEW.raw)
       OR OLD.was_in_pool AND NOT NEW.was_in_pool THEN
        RAISE EXCEPTION 'attempt % of transaction % stands', OLD.attempt, OLD.tx_id
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER tx_attempts_guard BEFORE UPDATE ON txm.tx_attempts
    FOR EACH ROW EXECUTE FUNCTION txm.tx_attempts_guard();

-- A command ends once.
CREATE FUNCTION txm.tx_commands_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state < OLD.state OR OLD.state IN (2, 3)
       OR (OLD.signer, OLD.what, OLD.body, OLD.actor) <> (NEW.signer, NEW.what, NEW.body, NEW.actor)
       OR OLD.tx_id IS DISTINCT FROM NEW.tx_id THEN
        RAISE EXCEPTION 'command % stands', OLD.command_id USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER tx_commands_guard BEFORE UPDATE ON txm.tx_commands
    FOR EACH ROW EXECUTE FUNCTION txm.tx_commands_guard();

-- A journal is written once: a row never changes.
CREATE FUNCTION txm.row_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row of % is written once and stands', TG_TABLE_NAME USING ERRCODE = 'UB003';
END
$$;

CREATE TRIGGER tx_confirmations_guard BEFORE UPDATE OR DELETE ON txm.tx_confirmations
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER tx_events_guard BEFORE UPDATE OR DELETE ON txm.tx_events
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER tx_history_guard BEFORE UPDATE OR DELETE ON txm.tx_history
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER nonce_jumps_guard BEFORE UPDATE OR DELETE ON txm.nonce_jumps
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER audit_guard BEFORE UPDATE OR DELETE ON txm.audit
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER managed_tx_delete_guard BEFORE DELETE ON txm.managed_tx
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER tx_attempts_delete_guard BEFORE DELETE ON txm.tx_attempts
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER signer_lease_delete_guard BEFORE DELETE ON txm.signer_lease
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER signer_nonce_cursor_delete_guard BEFORE DELETE ON txm.signer_nonce_cursor
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER nodes_delete_guard BEFORE DELETE ON txm.nodes
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
CREATE TRIGGER tx_commands_delete_guard BEFORE DELETE ON txm.tx_commands
    FOR EACH ROW EXECUTE FUNCTION txm.row_guard();
