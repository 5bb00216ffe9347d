-- The audit compares every balance with the sum of its operations. audit_totals holds the sums of
-- the flights that are folded (audit_folded); the process reads the entries of later flights from
-- the journal and adds them up by account. They are the arguments p_users, p_assets, p_sums here:
-- one element for each account.

-- Accounts with a balance that is not its totals and its sum together. It looks at the accounts
-- between two users, and at those in the arguments.
CREATE FUNCTION audit_unbalanced(
    p_after BIGINT, p_until BIGINT, p_users BIGINT[], p_assets INTEGER[], p_sums NUMERIC[])
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC, version BIGINT)
LANGUAGE sql STABLE AS $$
    WITH new AS MATERIALIZED (
        SELECT * FROM unnest(p_users, p_assets, p_sums) AS n (user_id, asset_id, journal)),
    -- By key instead of one condition over all rows: an index finds the accounts.
    balances AS (
        SELECT user_id, asset_id, available + frozen AS held, version FROM balances_tb
         WHERE user_id > p_after AND user_id <= p_until
        UNION
        SELECT b.user_id, b.asset_id, b.available + b.frozen, b.version
          FROM new JOIN balances_tb b USING (user_id, asset_id)
    ), totals AS (
        SELECT user_id, asset_id, SUM(journal) AS journal FROM (
            SELECT user_id, asset_id, journal FROM audit_totals
             WHERE user_id > p_after AND user_id <= p_until
            UNION
            SELECT t.user_id, t.asset_id, t.journal
              FROM new JOIN audit_totals t USING (user_id, asset_id)
            UNION ALL
            SELECT user_id, asset_id, journal FROM new
        ) AS parts GROUP BY user_id, asset_id
    )
    SELECT user_id, asset_id, COALESCE(held, 0) - COALESCE(journal, 0), COALESCE(version, 0)
      FROM balances FULL JOIN totals USING (user_id, asset_id)
     WHERE COALESCE(held, 0) <> COALESCE(journal, 0)
$$;

-- Accounts with external operations that are not their totals and their sum together.
CREATE FUNCTION audit_external_changes(p_users BIGINT[], p_assets INTEGER[], p_sums NUMERIC[])
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC)
LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(now) - SUM(seen) FROM (
        SELECT user_id, asset_id, funding_effect(op, amount) AS now, 0 AS seen
          FROM external_operations WHERE code IS NULL
        UNION ALL
        SELECT user_id, asset_id, 0, external FROM audit_totals
        UNION ALL
        SELECT * FROM (
            SELECT user_id, asset_id, 0, seen
              FROM unnest(p_users, p_assets, p_sums) AS n (user_id, asset_id, seen)) AS new
    ) AS sums GROUP BY user_id, asset_id HAVING SUM(now) <> SUM(seen)
$$;

-- Balances of the users between two that are not the sum of all operations: the totals below the
-- watermark, and each transfer and external operation above it. The journal is left out, so a row
-- that says more or less than the journal is found.
CREATE FUNCTION audit_miscounted(p_after BIGINT, p_until BIGINT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    WITH balances AS MATERIALIZED (
        SELECT user_id, asset_id, available + frozen AS held FROM balances_tb
         WHERE user_id > p_after AND user_id <= p_until
    )
    SELECT user_id, asset_id, SUM(held) - SUM(counted) FROM (
        SELECT user_id, asset_id, held, 0 AS counted FROM balances
        UNION ALL
        SELECT user_id, asset_id, 0, funding_deposited - funding_withdrawn + funding_refunded
                                     + external_deposited - external_withdrawn
                                     + transaction_brought - transaction_taken
          FROM watermark_totals WHERE user_id > p_after AND user_id <= p_until
        UNION ALL
        SELECT t.user_id, t.asset_id, 0, funding_effect(done.op, t.amount)
          FROM (SELECT DISTINCT user_id FROM balances) AS users
         CROSS JOIN LATERAL (
            SELECT * FROM transfers_tb t
             WHERE t.user_id = users.user_id
               AND t.order_number >= (SELECT watermark FROM engine_state) OFFSET 0) AS t
         CROSS JOIN LATERAL unnest(funding_operations(
                   t.direction, t.funding_at, t.funding_code, t.refund_at)) AS done (op)
        UNION ALL
        SELECT user_id, asset_id, 0, funding_effect(op, amount) FROM external_operations
         WHERE order_number >= (SELECT watermark FROM engine_state)
           AND code IS NULL AND user_id > p_after AND user_id <= p_until
        UNION ALL
        SELECT user_id, asset_id, 0, brought - taken FROM funding_holds
         WHERE state = 40 AND user_id > p_after AND user_id <= p_until
           AND order_number >= (SELECT watermark FROM engine_state)
    ) AS parts GROUP BY user_id, asset_id HAVING SUM(held) <> SUM(counted)
$$;

-- Balances of the users between two with a frozen part that is not the sum of their freezes and
-- open holds. hold_key: the oldest open hold, NULL if there is none.
CREATE FUNCTION audit_misheld(p_after BIGINT, p_until BIGINT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC, hold_key TEXT)
LANGUAGE sql STABLE AS $$
    WITH balances AS (
        SELECT user_id, asset_id, frozen FROM balances_tb
         WHERE user_id > p_after AND user_id <= p_until
    ), apart AS (
        SELECT user_id, asset_id, SUM(amount) AS amount,
               (array_agg(hold_key ORDER BY order_number, hold_key)
                FILTER (WHERE hold_key IS NOT NULL))[1] AS hold_key
          FROM (SELECT user_id, asset_id, amount, order_number, hold_key FROM funding_holds
                 WHERE state = 10 AND user_id > p_after AND user_id <= p_until
                UNION ALL
                SELECT user_id, asset_id, amount, NULL, NULL FROM freezes_tb
                 WHERE user_id > p_after AND user_id <= p_until) AS parts
         GROUP BY user_id, asset_id
    )
    SELECT user_id, asset_id, COALESCE(frozen, 0) - COALESCE(amount, 0), apart.hold_key
      FROM balances FULL JOIN apart USING (user_id, asset_id)
     WHERE COALESCE(frozen, 0) <> COALESCE(amount, 0)
$$;

-- Freezes of the users between two that differ from the holds of their purpose: the settled ones
-- have brought and taken, and the open ones have amounts apart. Holds that moved money are never
-- deleted.
CREATE FUNCTION audit_misfrozen(p_after BIGINT, p_until BIGINT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, purpose INTEGER, frozen NUMERIC, counted NUMERIC)
LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, purpose, SUM(frozen), SUM(counted) FROM (
        SELECT user_id, asset_id, purpose, amount AS frozen, 0 AS counted FROM freezes_tb
         WHERE user_id > p_after AND user_id <= p_until
        UNION ALL
        SELECT user_id, asset_id, purpose, 0,
               brought - taken - CASE WHEN state = 10 THEN amount ELSE 0 END
          FROM funding_holds
         WHERE purpose <> 0 AND user_id > p_after AND user_id <= p_until
    ) AS parts GROUP BY user_id, asset_id, purpose HAVING SUM(frozen) <> SUM(counted)
$$;

-- Compares all balances with all operations, without the audit's sums.
CREATE FUNCTION audit_recount()
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(held) - SUM(counted) FROM (
        SELECT user_id, asset_id, available + frozen AS held, 0 AS counted FROM balances_tb
        UNION ALL
        SELECT user_id, asset_id, 0, funding_effect(op, amount)
          FROM transfer_decisions WHERE code IS NULL
        UNION ALL
        SELECT user_id, asset_id, 0, funding_effect(op, amount)
          FROM external_operations WHERE code IS NULL
        UNION ALL
        SELECT user_id, asset_id, 0, brought - taken FROM funding_holds WHERE state = 40
    ) AS parts GROUP BY user_id, asset_id HAVING SUM(held) <> SUM(counted)
$$;

-- Folds flights: adds the sums of their entries to the totals, and notes the record of the log up
-- to which all is compared. p_from and p_to: the last flight of each shard in p_shards that is
-- folded before and afterwards. Returns FALSE if a later process audits; then nothing is changed.
CREATE FUNCTION audit_fold(
    p_incarnation BIGINT, p_log_sequence BIGINT, p_shards INTEGER[], p_from BIGINT[],
    p_to BIGINT[], p_users BIGINT[], p_assets INTEGER[], p_journal NUMERIC[],
    p_external NUMERIC[])
RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    -- Two calls go one after the other.
    UPDATE audit_state SET log_sequence = p_log_sequence WHERE incarnation = p_incarnation;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    PERFORM FROM unnest(p_shards, p_from) AS s (shard, flight)
             LEFT JOIN audit_folded f USING (shard)
      WHERE s.flight <> COALESCE(f.flight, 0);
    IF FOUND THEN
        RAISE EXCEPTION 'another call has folded these flights' USING ERRCODE = 'UB004';
    END IF;
    INSERT INTO audit_folded AS f (shard, flight)
    SELECT shard, flight FROM unnest(p_shards, p_to) AS s (shard, flight) ORDER BY shard
    ON CONFLICT (shard) DO UPDATE SET flight = EXCLUDED.flight;
    INSERT INTO audit_totals AS t (user_id, asset_id, journal, external)
    SELECT user_id, asset_id, journal, external
      FROM unnest(p_users, p_assets, p_journal, p_external)
           AS s (user_id, asset_id, journal, external)
    ON CONFLICT (user_id, asset_id) DO UPDATE
    SET journal = t.journal + EXCLUDED.journal, external = t.external + EXCLUDED.external;
    RETURN TRUE;
END
$$;

-- Begins the totals anew with all present operations, for a repair: no flight is under way, and
-- every flight so far counts as folded.
CREATE FUNCTION audit_begin_anew() RETURNS VOID LANGUAGE sql AS $$
    DELETE FROM audit_totals;
    INSERT INTO audit_totals (user_id, asset_id, journal, external)
    SELECT user_id, asset_id, SUM(effect), COALESCE(SUM(effect) FILTER (WHERE outside), 0) FROM (
        SELECT user_id, asset_id, funding_effect(op, amount) AS effect, FALSE AS outside
          FROM transfer_decisions WHERE code IS NULL
        UNION ALL
        SELECT user_id, asset_id, funding_effect(op, amount), TRUE
          FROM external_operations WHERE code IS NULL
        UNION ALL
        SELECT user_id, asset_id, brought - taken, FALSE FROM funding_holds WHERE state = 40
    ) AS operations GROUP BY user_id, asset_id;
    DELETE FROM audit_folded;
    INSERT INTO audit_folded SELECT shard, flight FROM journal_last;
$$;
