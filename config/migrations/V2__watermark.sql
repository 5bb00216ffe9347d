-- ubscore, version 2: the watermark rises, and what lies below it is added up.
--
-- Below the watermark everything is over: no accept will come with such an order number, every transfer has been
-- terminal for `outcomes.keep_hours`, and UBSCore may have forgotten its outcomes. What an auditor needs of them is in
-- watermark_totals. Two positions divide all rows into "added up" and "still read row by row":
--
--   transfers and their operations:  transfers_tb.order_number      < engine_state.watermark
--   external operations:             external_operations.position   < engine_state.external_watermark
--
-- so that at any moment, for each user and asset, the totals plus the rows at or above both positions are everything.
-- External operations have a position of their own instead of an order number: nothing in UBSCore depends on them, so
-- they need no promise of a worker, only a number that is settled.

ALTER TABLE engine_state
    ADD COLUMN external_watermark BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN external_settled   BIGINT NOT NULL DEFAULT 0;   -- no external operation will come with a smaller position

ALTER TABLE external_operations ADD COLUMN position BIGSERIAL UNIQUE;   -- serial; order of commits may differ

-- What has passed below the two positions, cumulative. Spot's sums are what terminal states claim of UBSCore.
CREATE TABLE watermark_totals (
    user_id             BIGINT NOT NULL,
    asset_id            INTEGER NOT NULL,
    funding_withdrawn   DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (funding_withdrawn >= 0),
    funding_deposited   DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (funding_deposited >= 0),
    funding_refunded    DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (funding_refunded >= 0),
    spot_withdrawn      DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (spot_withdrawn >= 0),
    spot_deposited      DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (spot_deposited >= 0),
    spot_refunded       DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (spot_refunded >= 0),
    external_deposited  DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (external_deposited >= 0),
    external_withdrawn  DECIMAL(38,8) NOT NULL DEFAULT 0 CHECK (external_withdrawn >= 0),
    PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor = 80);

-- How long processes of this database have lived, by their monotonic clocks: time that no stepped clock can lengthen.
-- What passes while none runs is not counted, which only delays.
CREATE TABLE watermark_clock (
    singleton   BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    incarnation BIGINT NOT NULL DEFAULT 0,      -- who told last
    before_ms   BIGINT NOT NULL DEFAULT 0,      -- lived by incarnations before it
    lived_ms    BIGINT NOT NULL DEFAULT 0       -- lived by it so far
);

INSERT INTO watermark_clock DEFAULT VALUES;

-- Order numbers below which everything was seen to be terminal, and when by watermark_clock.
CREATE TABLE watermark_sightings (
    order_number BIGINT PRIMARY KEY,
    seen_ms      BIGINT NOT NULL
);

-- The operations on Spot that a terminal state claims: 1 withdraw, 2 deposit, 3 refund.
CREATE FUNCTION spot_operations(p_type SMALLINT, p_state SMALLINT) RETURNS SMALLINT[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_type = 1 AND p_state = 40 THEN '{2}'::SMALLINT[]
                WHEN p_type = 2 AND p_state = 40 THEN '{1}'
                WHEN p_type = 2 AND p_state = -30 THEN '{1,3}'
                ELSE '{}' END
$$;

-- An accept below the watermark would be asked of a UBSCore that may have forgotten it. The workers promise that there
-- is none, and the fence holds the watermark still until this transaction's end; this is the same promise once more.
CREATE FUNCTION transfers_watermark_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.order_number < (SELECT watermark FROM engine_state) THEN
        RAISE EXCEPTION 'transfer % has order number %, which is below the watermark', NEW.req_id, NEW.order_number
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER transfers_watermark_guard BEFORE INSERT ON transfers_tb
    FOR EACH ROW EXECUTE FUNCTION transfers_watermark_guard();

-- Takes down that everything below p_number is terminal now (NULL: not known), p_lived_ms into the life of this
-- process, and returns the largest number that was so p_keep_ms of lived time ago (0: none). Absolute numbers, so that
-- a repeat whose first answer was lost counts nothing twice.
CREATE FUNCTION watermark_observe(p_incarnation BIGINT, p_number BIGINT, p_lived_ms BIGINT, p_keep_ms BIGINT)
RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
    v_now  BIGINT;
    v_ripe BIGINT;
BEGIN
    PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
    UPDATE watermark_clock
       SET before_ms = CASE WHEN incarnation = p_incarnation THEN before_ms ELSE before_ms + lived_ms END,
           lived_ms = CASE WHEN incarnation = p_incarnation THEN GREATEST(lived_ms, p_lived_ms) ELSE p_lived_ms END,
           incarnation = p_incarnation
    RETURNING before_ms + lived_ms INTO v_now;
    -- 256 sightings a keep time are fine enough, and a bound on the table.
    INSERT INTO watermark_sightings
    SELECT p_number, v_now
     WHERE p_number > (SELECT COALESCE(max(order_number), 0) FROM watermark_sightings)
       AND v_now - (SELECT COALESCE(max(seen_ms), v_now - p_keep_ms) FROM watermark_sightings) >= p_keep_ms / 256;
    SELECT COALESCE(max(order_number), 0) INTO v_ripe FROM watermark_sightings WHERE seen_ms <= v_now - p_keep_ms;
    DELETE FROM watermark_sightings WHERE order_number < v_ripe;
    RETURN v_ripe;
END
$$;

-- Raises the watermark towards p_target (from watermark_observe), over p_rows transfers at most, and never past one
-- that is not terminal or has not been so for p_keep_ms by this server's clock; and the external one over p_rows
-- operations. The totals follow in the same transaction.
--
-- The long part comes first, without a lock: what lies below p_target is over and cannot change. Then a lock that
-- every fence conflicts with: it waits for all batches, later ones wait for it, in the order of their coming (a row
-- lock would not do: shared lockers overtake who waits for an exclusive one, for ever where there are enough of them).
-- Below it there is one count and one row to write. A repeat, or a late twin given up before, finds the positions moved
-- and changes nothing. While the service is halted, nothing is raised.
--
-- Returns the watermark, whether a further call would find more, and the age of the oldest transfer above it, seconds.
CREATE FUNCTION watermark_raise(
    p_incarnation BIGINT, p_target BIGINT, p_keep_ms BIGINT, p_rows INTEGER,
    OUT o_watermark BIGINT, OUT o_more BOOLEAN, OUT o_oldest_s DOUBLE PRECISION)
-- A page is read by its keys, whatever the statistics say of the newest rows.
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_halted        BOOLEAN;
    v_old           BIGINT;
    v_new           BIGINT;
    v_held          BIGINT;
    v_found         BIGINT;
    v_recount       BIGINT;
    v_external_old  BIGINT;
    v_external_new  BIGINT;
    v_settled       BIGINT;
    v_external_next BIGINT;
BEGIN
    SELECT halted, watermark, external_watermark, external_settled INTO v_halted, v_old, v_external_old, v_settled
      FROM engine_state WHERE incarnation = p_incarnation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
    IF v_halted THEN
        -- Somebody has to find out what is wrong: nothing may be forgotten meanwhile.
        p_target := v_old;
        v_settled := v_external_old;
    END IF;

    -- One page of order numbers, and the first of them that holds it.
    SELECT max(order_number) + 1 INTO v_new
      FROM (SELECT order_number FROM transfers_tb WHERE order_number >= v_old AND order_number < p_target
            ORDER BY order_number LIMIT p_rows) AS page
    HAVING count(*) = p_rows;
    o_more := v_new IS NOT NULL;
    v_new := GREATEST(v_old, COALESCE(v_new, p_target));
    WITH page AS MATERIALIZED (
        SELECT order_number,
               state NOT IN (40, -10, -30)
               OR updated_at > clock_timestamp() - p_keep_ms * interval '1 millisecond' AS holds
          FROM transfers_tb WHERE order_number >= v_old AND order_number < v_new
    ), held AS (SELECT min(order_number) FILTER (WHERE holds) AS first FROM page)
    SELECT first, count(*) FILTER (WHERE first IS NULL OR order_number < first) INTO v_held, v_found
      FROM page CROSS JOIN held GROUP BY first;
    v_found := COALESCE(v_found, 0);
    IF v_held IS NOT NULL THEN
        v_new := v_held;
        o_more := FALSE;
    END IF;

    SELECT max(position) + 1 INTO v_external_new
      FROM (SELECT position FROM external_operations WHERE position >= v_external_old AND position < v_settled
            ORDER BY position LIMIT p_rows) AS page
    HAVING count(*) = p_rows;
    o_more := o_more OR v_external_new IS NOT NULL;
    v_external_new := COALESCE(v_external_new, v_settled);

    INSERT INTO watermark_totals AS totals
    SELECT user_id, asset_id,
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'funding' AND op = 3), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 1), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 2), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'spot' AND op = 3), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'outside' AND op = 4), 0),
           COALESCE(sum(amount) FILTER (WHERE place = 'outside' AND op = 5), 0)
      FROM (
        SELECT o.user_id, o.asset_id, 'funding' AS place, o.op, o.amount
          FROM transfers_tb t JOIN transfer_operations o ON o.req_id = t.req_id AND o.outcome = 1
         WHERE t.order_number >= v_old AND t.order_number < v_new
        UNION ALL
        SELECT t.user_id, t.asset_id, 'spot', claimed.op, t.amount
          FROM transfers_tb t CROSS JOIN LATERAL unnest(spot_operations(t.transfer_type, t.state)) AS claimed (op)
         WHERE t.order_number >= v_old AND t.order_number < v_new
        UNION ALL
        SELECT user_id, asset_id, 'outside', op, amount
          FROM external_operations
         WHERE position >= v_external_old AND position < v_external_new AND outcome = 1
      ) AS passed
     GROUP BY user_id, asset_id ORDER BY user_id, asset_id
    ON CONFLICT (user_id, asset_id) DO UPDATE SET
        funding_withdrawn  = totals.funding_withdrawn  + EXCLUDED.funding_withdrawn,
        funding_deposited  = totals.funding_deposited  + EXCLUDED.funding_deposited,
        funding_refunded   = totals.funding_refunded   + EXCLUDED.funding_refunded,
        spot_withdrawn     = totals.spot_withdrawn     + EXCLUDED.spot_withdrawn,
        spot_deposited     = totals.spot_deposited     + EXCLUDED.spot_deposited,
        spot_refunded      = totals.spot_refunded      + EXCLUDED.spot_refunded,
        external_deposited = totals.external_deposited + EXCLUDED.external_deposited,
        external_withdrawn = totals.external_withdrawn + EXCLUDED.external_withdrawn;

    SELECT COALESCE(max(position), 0) + 1 INTO v_external_next FROM external_operations;
    IF NOT v_halted AND (v_new > v_old OR v_external_new > v_external_old OR v_external_next > v_settled) THEN
        LOCK TABLE engine_state IN EXCLUSIVE MODE;
        -- Nothing that was added up may have been joined by another meanwhile.
        SELECT count(*) INTO v_recount FROM transfers_tb WHERE order_number >= v_old AND order_number < v_new;
        IF v_recount <> v_found THEN
            RAISE EXCEPTION 'between order numbers % and % there were % transfers, and now there are %',
                v_old, v_new, v_found, v_recount USING ERRCODE = 'UB003';
        END IF;
        -- No batch is under way: whoever comes later takes a position above every one that is there.
        SELECT COALESCE(max(position), 0) + 1 INTO v_external_next FROM external_operations;
        UPDATE engine_state
           SET watermark = v_new, external_watermark = v_external_new,
               external_settled = GREATEST(external_settled, v_external_next)
         WHERE incarnation = p_incarnation AND NOT halted
           AND watermark = v_old AND external_watermark = v_external_old;
        IF NOT FOUND THEN
            PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
            END IF;
            RAISE EXCEPTION 'the watermark has been raised from % by another call, or the service was halted', v_old
                USING ERRCODE = 'UB004';
        END IF;
    END IF;
    o_watermark := v_new;
    SELECT extract(epoch FROM clock_timestamp() - created_at) INTO o_oldest_s
      FROM transfers_tb WHERE order_number >= v_new ORDER BY order_number LIMIT 1;
END
$$;
