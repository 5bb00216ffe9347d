-- The audit compares every balance with the sum of its operations, and looks only at new
-- operations.
--
-- Each operation carries the number of its transaction. A snapshot less an earlier one is exactly
-- the set of operations that were committed between them. audit_totals holds the sums of all
-- operations that the audit has seen, audit_state the snapshot of the last one.

-- Whether the snapshot does not include a transaction. The first condition is for the index.
CREATE FUNCTION audit_is_new(p_xid BIGINT, p_snapshot TEXT) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT p_xid >= pg_snapshot_xmin(p_snapshot::pg_snapshot)::text::bigint
           AND NOT pg_visible_in_snapshot(p_xid::text::xid8, p_snapshot::pg_snapshot)
$$;

-- The successful operations that the snapshot does not include, by account.
CREATE FUNCTION audit_journal_since(p_snapshot TEXT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, journal NUMERIC, external NUMERIC)
LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(effect), SUM(effect) FILTER (WHERE outside) FROM (
        SELECT user_id, asset_id, funding_effect(op, amount) AS effect, FALSE AS outside
          FROM transfer_operations WHERE outcome = 1 AND audit_is_new(xid, p_snapshot)
        UNION ALL
        SELECT user_id, asset_id, funding_effect(op, amount), TRUE
          FROM external_operations WHERE outcome = 1 AND audit_is_new(xid, p_snapshot)
    ) AS new GROUP BY user_id, asset_id
$$;

-- Accounts with a balance that is not the sum of its operations. It looks at the accounts between
-- two users, and at those with an operation that the snapshot does not include.
CREATE FUNCTION audit_unbalanced(p_snapshot TEXT, p_after BIGINT, p_until BIGINT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    WITH new AS MATERIALIZED (SELECT * FROM audit_journal_since(p_snapshot)),
    -- By key instead of one condition over all rows: new operations are few, and an index finds
    -- them.
    balances AS (
        SELECT user_id, asset_id, available + frozen AS held FROM balances_tb
         WHERE user_id > p_after AND user_id <= p_until
        UNION
        SELECT b.user_id, b.asset_id, b.available + b.frozen
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
    SELECT user_id, asset_id, COALESCE(held, 0) - COALESCE(journal, 0)
      FROM balances FULL JOIN totals USING (user_id, asset_id)
     WHERE COALESCE(held, 0) <> COALESCE(journal, 0)
$$;

-- Accounts with external operations that do not add up to the sum that the audit has seen.
CREATE FUNCTION audit_external_changes(p_snapshot TEXT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(now) - SUM(seen) FROM (
        SELECT user_id, asset_id, funding_effect(op, amount) AS now, 0 AS seen
          FROM external_operations WHERE outcome = 1
        UNION ALL
        SELECT user_id, asset_id, 0, external FROM audit_totals
        UNION ALL
        SELECT user_id, asset_id, 0, COALESCE(external, 0) FROM audit_journal_since(p_snapshot)
    ) AS sums GROUP BY user_id, asset_id HAVING SUM(now) <> SUM(seen)
$$;

-- Transfers with a decided operation that the snapshot does not include.
CREATE FUNCTION audit_transfers_since(p_snapshot TEXT) RETURNS SETOF VARCHAR
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT req_id FROM transfer_operations WHERE audit_is_new(xid, p_snapshot)
$$;

-- Compares all balances with all operations, without the audit's sums.
CREATE FUNCTION audit_recount()
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(held) - SUM(counted) FROM (
        SELECT user_id, asset_id, available + frozen AS held, 0 AS counted FROM balances_tb
        UNION ALL
        SELECT user_id, asset_id, 0, funding_effect(op, amount)
          FROM transfer_operations WHERE outcome = 1
        UNION ALL
        SELECT user_id, asset_id, 0, funding_effect(op, amount)
          FROM external_operations WHERE outcome = 1
    ) AS parts GROUP BY user_id, asset_id HAVING SUM(held) <> SUM(counted)
$$;

-- Adds new operations to the totals.
CREATE FUNCTION audit_add(p_snapshot TEXT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO audit_totals AS t (user_id, asset_id, journal, external)
    SELECT user_id, asset_id, journal, COALESCE(external, 0) FROM audit_journal_since(p_snapshot)
    ON CONFLICT (user_id, asset_id) DO UPDATE
    SET journal = t.journal + EXCLUDED.journal, external = t.external + EXCLUDED.external
$$;

-- Whether these tables come from another cluster: its identifier is another, or a number that they
-- hold is still to come here.
CREATE FUNCTION audit_is_foreign() RETURNS BOOLEAN LANGUAGE sql AS $$
    SELECT system_identifier <> (SELECT system_identifier FROM pg_control_system())
           OR pg_snapshot_xmax(snapshot::pg_snapshot) > now_xmax
           OR EXISTS (SELECT 1 FROM transfer_operations WHERE xid >= now_xmax::text::bigint)
           OR EXISTS (SELECT 1 FROM external_operations WHERE xid >= now_xmax::text::bigint)
      FROM audit_state, pg_snapshot_xmax(pg_current_snapshot()) AS now_xmax
$$;

-- Begins the audit anew with the present operations, for tables that come from another cluster. The
-- numbers of its transactions mean nothing here. From now on the tables are this cluster's own.
CREATE FUNCTION audit_rebase() RETURNS VOID LANGUAGE sql AS $$
    ALTER TABLE transfer_operations DISABLE TRIGGER transfer_operations_guard;
    ALTER TABLE external_operations DISABLE TRIGGER external_operations_guard;
    UPDATE transfer_operations SET xid = 0 WHERE xid <> 0;
    UPDATE external_operations SET xid = 0 WHERE xid <> 0;
    ALTER TABLE transfer_operations ENABLE TRIGGER transfer_operations_guard;
    ALTER TABLE external_operations ENABLE TRIGGER external_operations_guard;
    DELETE FROM audit_totals;
    INSERT INTO audit_totals (user_id, asset_id, journal, external)
    SELECT user_id, asset_id, SUM(effect), COALESCE(SUM(effect) FILTER (WHERE outside), 0) FROM (
        SELECT user_id, asset_id, funding_effect(op, amount) AS effect, FALSE AS outside
          FROM transfer_operations WHERE outcome = 1
        UNION ALL
        SELECT user_id, asset_id, funding_effect(op, amount), TRUE
          FROM external_operations WHERE outcome = 1
    ) AS operations GROUP BY user_id, asset_id;
    -- No transaction has a number below 3, so every later row is new.
    INSERT INTO audit_state (snapshot, system_identifier)
    SELECT '1:1:', system_identifier FROM pg_control_system()
    ON CONFLICT (singleton) DO UPDATE
    SET snapshot = EXCLUDED.snapshot, system_identifier = EXCLUDED.system_identifier;
$$;
