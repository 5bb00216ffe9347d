-- The fence: only the latest incarnation writes, and the flights of a shard commit in their order.
--
-- PostgreSQL makes a transaction of any statement. A flight of one statement therefore needs
-- neither BEGIN nor COMMIT, and passes the fence in an argument (`fenced`). In a flight of several
-- statements the fence is the first, and the others check that it came before them (`in_flight`).
-- Both are evaluated before the function that writes is called. The statements of that function see
-- everything that was committed when the fence let the flight pass.

-- Refuses a superseded process with UB001. Until its transaction ends, no incarnation can begin.
CREATE FUNCTION fence_incarnation(p_incarnation BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
END
$$;

-- The first statement of every flight. It locks the incarnation, and writes the highest sequence
-- that was seen durable into the shard's own lease.
--
-- A superseded process gets UB001 and commits nothing. A flight that was given up may arrive after
-- a later one of the same owner: it gets UB004.
CREATE FUNCTION fence(
    p_incarnation BIGINT, p_shard INTEGER, p_flight BIGINT, p_durable BIGINT, p_lease_ms INTEGER)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    v_epoch BIGINT;
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    UPDATE shard_lease
       SET durable_sequence = GREATEST(durable_sequence, p_durable), flight = p_flight,
           expires_at = clock_timestamp() + make_interval(secs => p_lease_ms / 1000.0)
     WHERE shard = p_shard AND epoch = p_incarnation AND flight < p_flight;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT epoch INTO v_epoch FROM shard_lease WHERE shard = p_shard;
    IF v_epoch IS DISTINCT FROM p_incarnation THEN
        RAISE EXCEPTION 'shard % is leased to another', p_shard USING ERRCODE = 'UB001';
    END IF;
    RAISE EXCEPTION 'flight % of shard % comes too late', p_flight, p_shard
        USING ERRCODE = 'UB004';
END
$$;

-- Returns p_actor once the fence has let the flight pass.
CREATE FUNCTION fenced(
    p_actor TEXT, p_incarnation BIGINT, p_shard INTEGER, p_flight BIGINT, p_durable BIGINT,
    p_lease_ms INTEGER)
RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_incarnation, p_shard, p_flight, p_durable, p_lease_ms);
    RETURN p_actor;
END
$$;

-- Returns p_text if this transaction has written before, as the fence does. A statement that lost
-- its BEGIN would be a transaction of its own, without a fence: it gets UB004.
CREATE FUNCTION in_flight(p_text TEXT) RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        RAISE EXCEPTION 'a statement without its flight' USING ERRCODE = 'UB004';
    END IF;
    RETURN p_text;
END
$$;
