-- ubscore, version 6: a flight of one statement needs no BEGIN and no COMMIT.
--
-- PostgreSQL makes a transaction of any statement. One that moves transfers is a flight of its own when it passes the fence
-- itself; in a flight of several, the fence is the first statement and the others see that it is behind them. Either is asked
-- where an argument is evaluated: before the function that writes is called, whose own statements see all that was committed
-- when the fence let it pass.

-- p_actor, once the fence has let it pass.
CREATE FUNCTION fenced(
    p_actor TEXT, p_incarnation BIGINT, p_shard INTEGER, p_flight BIGINT, p_durable BIGINT, p_lease_ms INTEGER)
RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence(p_incarnation, p_shard, p_flight, p_durable, p_lease_ms);
    RETURN p_actor;
END
$$;

-- p_text, if this transaction has written before: the fence has. Without its BEGIN a statement of a flight would be a
-- transaction of its own, which nothing fences.
CREATE FUNCTION in_flight(p_text TEXT) RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        RAISE EXCEPTION 'a statement without its flight' USING ERRCODE = 'UB004';
    END IF;
    RETURN p_text;
END
$$;
