-- Many transfers in one statement.
--
-- A statement costs PostgreSQL more than the rows that it writes: its executor, the text of its
-- constraints, an answer of its own. Transfers that pass the same states therefore share one.
--
-- A transfer is plain if it is new, its account admits it and its balance covers it. Every other
-- one, such as a repeat or a refusal, goes through transfer_accept or transfer_step, one at a time,
-- in the same call. So do all other transfers of its user: the calls of one user take effect in
-- their order.
--
-- Rows are found by their keys, one after the other: OFFSET 0 keeps the planner from another order
-- of the join. They are written by their ctid. Versions and states are compared at the write. If
-- one has changed since it was read, the call fails, and the caller goes one at a time.

-- Accepts transfers of one direction, all through the same states: the same as transfer_accept for
-- each. Returns one transfer for each, in the given order.
CREATE FUNCTION transfers_accept(
    p_req_ids VARCHAR[], p_cids VARCHAR[], p_fingerprints VARCHAR[], p_users BIGINT[],
    p_assets INTEGER[], p_amounts NUMERIC[], p_orders BIGINT[], p_type SMALLINT, p_path SMALLINT[],
    p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[], p_actor TEXT)
RETURNS SETOF transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_states  SMALLINT[] := p_path || CASE WHEN p_op IS NULL THEN '{}' ELSE p_success END;
    v_written BOOLEAN;
    v_apart   BIGINT[];
    v_place   BIGINT;
    v_found   BIGINT;
BEGIN
    IF p_op <> 1 THEN
        RAISE EXCEPTION 'operation % is not for an accept', p_op USING ERRCODE = 'UB002';
    END IF;
    IF NOT transfer_state_admits(p_path[cardinality(p_path)], v_states[cardinality(v_states)])
       AND p_path[cardinality(p_path)] <> v_states[cardinality(v_states)] THEN
        RAISE EXCEPTION 'no transfer goes from state % to %', p_path[cardinality(p_path)],
            v_states[cardinality(v_states)] USING ERRCODE = 'UB003';
    END IF;
    IF p_op IS NULL THEN
        WITH accepted AS (
            INSERT INTO transfers_tb (order_number, req_id, cid, fingerprint, user_id, asset_id,
                                      amount, transfer_type, source_type, state)
            SELECT order_number, req_id, cid, fingerprint, user_id, asset_id, amount, p_type,
                   p_type, v_states[cardinality(v_states)]
              FROM unnest(p_req_ids, p_cids, p_fingerprints, p_users, p_assets, p_amounts, p_orders)
                   AS a (req_id, cid, fingerprint, user_id, asset_id, amount, order_number)
            ON CONFLICT DO NOTHING RETURNING req_id
        )
        INSERT INTO transfer_history (req_id, states, attempt, actor)
        SELECT req_id, v_states, 0, p_actor FROM accepted;
    ELSE
        WITH asked AS (
            SELECT a.*, b.balance_at, b.available, b.version, COALESCE(o.status, 0) AS status,
                   CASE WHEN a.cid IS NULL
                        THEN EXISTS (SELECT FROM transfers_tb t WHERE t.req_id = a.req_id)
                        ELSE EXISTS (SELECT FROM transfers_tb t
                                      WHERE t.user_id = a.user_id AND t.cid = a.cid)
                   END AS known
              FROM unnest(p_req_ids, p_cids, p_fingerprints, p_users, p_assets, p_amounts, p_orders)
                   WITH ORDINALITY
                   AS a (req_id, cid, fingerprint, user_id, asset_id, amount, order_number, place)
              LEFT JOIN LATERAL (
                SELECT ctid AS balance_at, available, version FROM balances_tb
                 WHERE user_id = a.user_id AND asset_id = a.asset_id AND account_type = 1
                OFFSET 0) AS b ON TRUE
              LEFT JOIN LATERAL (
                SELECT status FROM accounts_tb WHERE user_id = a.user_id AND account_type = 1
                OFFSET 0) AS o ON TRUE
        ), counted AS (
            SELECT *, count(*) OVER (PARTITION BY user_id, COALESCE(cid, req_id)) > 1 AS doubled,
                   sum(amount) OVER (PARTITION BY user_id, asset_id ORDER BY place) AS taken,
                   sum(amount) OVER (PARTITION BY user_id, asset_id) AS total,
                   count(*) OVER (PARTITION BY user_id, asset_id) AS operations
              FROM asked
        ), judged AS MATERIALIZED (
            SELECT *, bool_and(NOT known AND NOT doubled AND status = 1
                               AND COALESCE(available >= total, FALSE))
                      OVER (PARTITION BY user_id) AS plain
              FROM counted
        ), paid AS (
            UPDATE balances_tb b
               SET available = b.available - j.total, version = b.version + j.operations
              FROM (SELECT DISTINCT user_id, asset_id, balance_at, version, total, operations
                      FROM judged WHERE plain ORDER BY user_id, asset_id) AS j
             WHERE b.ctid = j.balance_at AND b.version = j.version
            RETURNING j.operations
        ), operated AS (
            INSERT INTO transfer_operations (req_id, op, outcome, user_id, asset_id, amount,
                                             balance_after)
            SELECT req_id, p_op, 1, user_id, asset_id, amount, available - taken
              FROM judged WHERE plain
        ), accepted AS (
            INSERT INTO transfers_tb (order_number, req_id, cid, fingerprint, user_id, asset_id,
                                      amount, transfer_type, source_type, state)
            SELECT order_number, req_id, cid, fingerprint, user_id, asset_id, amount, p_type,
                   p_type, v_states[cardinality(v_states)]
              FROM judged WHERE plain
        ), noted AS (
            INSERT INTO transfer_history (req_id, states, attempt, actor)
            SELECT req_id, v_states, 0, p_actor FROM judged WHERE plain
        )
        SELECT count(*) FILTER (WHERE plain) = (SELECT COALESCE(sum(operations), 0) FROM paid),
               array_agg(place ORDER BY place) FILTER (WHERE NOT plain)
          INTO v_written, v_apart FROM judged;
        IF NOT v_written THEN
            RAISE EXCEPTION 'a balance has changed meanwhile'
                USING ERRCODE = 'serialization_failure';
        END IF;
        FOREACH v_place IN ARRAY COALESCE(v_apart, '{}') LOOP
            PERFORM transfer_accept(
                p_req_ids[v_place], p_cids[v_place], p_fingerprints[v_place], p_users[v_place],
                p_assets[v_place], p_amounts[v_place], p_type, p_orders[v_place], p_path, p_op,
                p_success, p_refused, p_actor);
        END LOOP;
    END IF;
    RETURN QUERY
        SELECT t.* FROM unnest(p_req_ids, p_cids, p_users) WITH ORDINALITY
                        AS a (req_id, cid, user_id, place)
          CROSS JOIN LATERAL (
            SELECT * FROM transfers_tb WHERE a.cid IS NULL AND req_id = a.req_id
            UNION ALL
            SELECT * FROM transfers_tb WHERE user_id = a.user_id AND cid = a.cid
          ) AS t ORDER BY a.place;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    IF v_found <> cardinality(p_req_ids) THEN
        RAISE EXCEPTION 'a name or an order number is taken' USING ERRCODE = 'unique_violation';
    END IF;
END
$$;

-- Moves transfers on from one state, all through the same states: the same as transfer_step for
-- each. The only Funding operation here is a deposit (2). Returns one transfer for each, in the
-- given order.
CREATE FUNCTION transfers_step(
    p_req_ids VARCHAR[], p_codes VARCHAR[], p_log_sequences BIGINT[], p_attempts INTEGER[],
    p_from SMALLINT, p_path SMALLINT[], p_op SMALLINT, p_success SMALLINT[], p_refused SMALLINT[],
    p_actor TEXT)
RETURNS SETOF transfers_tb LANGUAGE plpgsql AS $$
DECLARE
    v_states  SMALLINT[] := p_path || CASE WHEN p_op IS NULL THEN '{}' ELSE p_success END;
    v_written BOOLEAN;
    v_apart   BIGINT[];
    v_place   BIGINT;
    v_found   BIGINT;
BEGIN
    IF p_op <> 2 THEN
        RAISE EXCEPTION 'operation % goes one at a time', p_op USING ERRCODE = 'UB002';
    END IF;
    IF (SELECT count(DISTINCT req_id) FROM unnest(p_req_ids) AS a (req_id))
       <> cardinality(p_req_ids) THEN
        RAISE EXCEPTION 'a transfer is named twice' USING ERRCODE = 'serialization_failure';
    END IF;
    IF p_op IS NULL THEN
        WITH moved AS (
            UPDATE transfers_tb t
               SET state = v_states[cardinality(v_states)],
                   error_code = COALESCE(t.error_code, a.code),
                   log_sequence = COALESCE(a.log_sequence, t.log_sequence), retry_count = 0,
                   next_retry_at = NULL, updated_at = clock_timestamp()
              FROM unnest(p_req_ids, p_codes, p_log_sequences, p_attempts)
                   AS a (req_id, code, log_sequence, attempt)
             CROSS JOIN LATERAL (
                SELECT ctid AS transfer_at FROM transfers_tb WHERE req_id = a.req_id OFFSET 0) AS f
             WHERE t.ctid = f.transfer_at AND t.state = p_from
            RETURNING t.req_id, a.attempt, a.code
        )
        INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
        SELECT req_id, v_states, attempt, p_actor, code FROM moved;
    ELSE
        WITH asked AS (
            SELECT a.*, t.transfer_at, t.user_id, t.asset_id, t.amount, b.balance_at, b.available,
                   b.version,
                   COALESCE(t.state = p_from, FALSE) AND COALESCE(o.status, 3) <> 3
                   AND b.version IS NOT NULL AS plain
              FROM unnest(p_req_ids, p_codes, p_log_sequences, p_attempts) WITH ORDINALITY
                   AS a (req_id, code, log_sequence, attempt, place)
              LEFT JOIN LATERAL (
                SELECT ctid AS transfer_at, user_id, asset_id, amount, state FROM transfers_tb
                 WHERE req_id = a.req_id OFFSET 0) AS t ON TRUE
              LEFT JOIN LATERAL (
                SELECT ctid AS balance_at, available, version FROM balances_tb
                 WHERE user_id = t.user_id AND asset_id = t.asset_id AND account_type = 1
                OFFSET 0) AS b ON TRUE
              LEFT JOIN LATERAL (
                SELECT status FROM accounts_tb WHERE user_id = t.user_id AND account_type = 1
                OFFSET 0) AS o ON TRUE
        ), judged AS MATERIALIZED (
            SELECT req_id, code, log_sequence, attempt, place, transfer_at, user_id, asset_id,
                   amount, balance_at, available, version,
                   bool_and(plain) OVER (PARTITION BY user_id) AS plain,
                   sum(amount) OVER (PARTITION BY user_id, asset_id ORDER BY place) AS put,
                   sum(amount) OVER (PARTITION BY user_id, asset_id) AS total,
                   count(*) OVER (PARTITION BY user_id, asset_id) AS operations
              FROM asked
        ), paid AS (
            UPDATE balances_tb b
               SET available = b.available + j.total, version = b.version + j.operations
              FROM (SELECT DISTINCT user_id, asset_id, balance_at, version, total, operations
                      FROM judged WHERE plain ORDER BY user_id, asset_id) AS j
             WHERE b.ctid = j.balance_at AND b.version = j.version
            RETURNING j.operations
        ), operated AS (
            INSERT INTO transfer_operations (req_id, op, outcome, user_id, asset_id, amount,
                                             balance_after)
            SELECT req_id, p_op, 1, user_id, asset_id, amount, available + put
              FROM judged WHERE plain
        ), moved AS (
            UPDATE transfers_tb t
               SET state = v_states[cardinality(v_states)],
                   error_code = COALESCE(t.error_code, j.code),
                   log_sequence = COALESCE(j.log_sequence, t.log_sequence), retry_count = 0,
                   next_retry_at = NULL, updated_at = clock_timestamp()
              FROM judged j WHERE j.plain AND t.ctid = j.transfer_at AND t.state = p_from
            RETURNING t.req_id
        ), noted AS (
            INSERT INTO transfer_history (req_id, states, attempt, actor, reason)
            SELECT req_id, v_states, attempt, p_actor, code FROM judged WHERE plain
        )
        SELECT count(*) FILTER (WHERE plain) = (SELECT count(*) FROM moved)
               AND count(*) FILTER (WHERE plain) = (SELECT COALESCE(sum(operations), 0) FROM paid),
               array_agg(place ORDER BY place) FILTER (WHERE NOT plain)
          INTO v_written, v_apart FROM judged;
        IF NOT v_written THEN
            RAISE EXCEPTION 'a transfer or a balance has changed meanwhile'
                USING ERRCODE = 'serialization_failure';
        END IF;
        FOREACH v_place IN ARRAY COALESCE(v_apart, '{}') LOOP
            PERFORM transfer_step(
                p_req_ids[v_place], p_from, p_path, p_op, p_success, p_refused, p_codes[v_place],
                p_log_sequences[v_place], p_attempts[v_place], p_actor, NULL);
        END LOOP;
    END IF;
    RETURN QUERY
        SELECT t.* FROM unnest(p_req_ids) WITH ORDINALITY AS a (req_id, place)
         CROSS JOIN LATERAL (
            SELECT * FROM transfers_tb WHERE req_id = a.req_id OFFSET 0) AS t ORDER BY a.place;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    IF v_found <> cardinality(p_req_ids) THEN
        RAISE EXCEPTION 'a transfer is missing' USING ERRCODE = 'UB002';
    END IF;
END
$$;
