-- ubscore, version 3: what the continuous audit needs to look only at what is new.
--
-- Every operation remembers the transaction that wrote it, so that one snapshot less an earlier one is exactly what
-- was committed between them. The sums of all operations are kept per account and compared with the balances.

-- 0 for what is there already: audit_totals begins with it.
ALTER TABLE transfer_operations ADD COLUMN xid BIGINT NOT NULL DEFAULT 0;
ALTER TABLE external_operations ADD COLUMN xid BIGINT NOT NULL DEFAULT 0;
ALTER TABLE transfer_operations ALTER COLUMN xid SET DEFAULT (pg_current_xact_id()::text::bigint);
ALTER TABLE external_operations ALTER COLUMN xid SET DEFAULT (pg_current_xact_id()::text::bigint);

-- Rows come in the order of their transactions, or nearly so: a summary of each range of pages finds the newest, costs
-- an insert nothing, and leaves updates of other columns HOT.
CREATE INDEX transfer_operations_by_xid ON transfer_operations USING brin (xid)
    WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX external_operations_by_xid ON external_operations USING brin (xid)
    WITH (pages_per_range = 32, autosummarize = on);

-- A journal is written once: from the end of its transaction on, a row never changes.
CREATE FUNCTION journal_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row of % is written once and stands', TG_TABLE_NAME USING ERRCODE = 'UB003';
END
$$;

CREATE TRIGGER transfer_operations_guard BEFORE UPDATE OR DELETE ON transfer_operations
    FOR EACH ROW WHEN (OLD.xid <> pg_current_xact_id()::text::bigint) EXECUTE FUNCTION journal_guard();
CREATE TRIGGER external_operations_guard BEFORE UPDATE OR DELETE ON external_operations
    FOR EACH ROW WHEN (OLD.xid <> pg_current_xact_id()::text::bigint) EXECUTE FUNCTION journal_guard();

-- What a transfer is stands from its accept on; only where it stands changes.
CREATE TRIGGER transfers_identity_guard
    BEFORE UPDATE OF order_number, req_id, cid, fingerprint, user_id, asset_id, amount, transfer_type, source_type
    ON transfers_tb FOR EACH ROW EXECUTE FUNCTION journal_guard();
CREATE TRIGGER transfers_delete_guard BEFORE DELETE ON transfers_tb
    FOR EACH ROW EXECUTE FUNCTION journal_guard();

-- What all operations that the audit has seen add up to.
CREATE TABLE audit_totals (
    user_id  BIGINT NOT NULL,
    asset_id INTEGER NOT NULL,
    journal  DECIMAL(38,8) NOT NULL,        -- all of them: what the balance must be
    external DECIMAL(38,8) NOT NULL,        -- deposits less withdrawals: what came from outside
    PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor = 80);

-- One row: how far the audit has come.
CREATE TABLE audit_state (
    singleton    BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    snapshot     TEXT NOT NULL,             -- what audit_totals includes, as pg_snapshot
    log_sequence BIGINT NOT NULL DEFAULT 0, -- records of the log up to this one have been found in the tables
    incarnation  BIGINT NOT NULL DEFAULT 0  -- whose audit it is
);

-- Successful operations that `p_snapshot` does not include, by account.
CREATE FUNCTION audit_journal_since(p_snapshot TEXT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, journal NUMERIC, external NUMERIC) LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(effect), SUM(effect) FILTER (WHERE outside) FROM (
        SELECT user_id, asset_id, CASE op WHEN 1 THEN -amount ELSE amount END AS effect, FALSE AS outside
          FROM transfer_operations
         WHERE outcome = 1 AND xid >= pg_snapshot_xmin(p_snapshot::pg_snapshot)::text::bigint
           AND NOT pg_visible_in_snapshot(xid::text::xid8, p_snapshot::pg_snapshot)
        UNION ALL
        SELECT user_id, asset_id, CASE op WHEN 5 THEN -amount ELSE amount END, TRUE
          FROM external_operations
         WHERE outcome = 1 AND xid >= pg_snapshot_xmin(p_snapshot::pg_snapshot)::text::bigint
           AND NOT pg_visible_in_snapshot(xid::text::xid8, p_snapshot::pg_snapshot)
    ) AS new GROUP BY user_id, asset_id
$$;

-- Accounts between two users, and all that are new since `p_snapshot`, whose balance is not what their operations add
-- up to.
CREATE FUNCTION audit_unbalanced(p_snapshot TEXT, p_after BIGINT, p_until BIGINT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    WITH new AS MATERIALIZED (SELECT * FROM audit_journal_since(p_snapshot)),
    -- By key and not by one condition over all: what is new is few, and is found by the index.
    balances AS (
        SELECT user_id, asset_id, available + frozen AS held FROM balances_tb
         WHERE user_id > p_after AND user_id <= p_until
        UNION
        SELECT b.user_id, b.asset_id, b.available + b.frozen FROM new JOIN balances_tb b USING (user_id, asset_id)
    ), totals AS (
        SELECT user_id, asset_id, SUM(journal) AS journal FROM (
            SELECT user_id, asset_id, journal FROM audit_totals WHERE user_id > p_after AND user_id <= p_until
            UNION
            SELECT t.user_id, t.asset_id, t.journal FROM new JOIN audit_totals t USING (user_id, asset_id)
            UNION ALL
            SELECT user_id, asset_id, journal FROM new
        ) AS parts GROUP BY user_id, asset_id
    )
    SELECT user_id, asset_id, COALESCE(held, 0) - COALESCE(journal, 0)
      FROM balances FULL JOIN totals USING (user_id, asset_id)
     WHERE COALESCE(held, 0) <> COALESCE(journal, 0)
$$;

-- What external operations add up to now, where that is not what the audit has seen of them.
CREATE FUNCTION audit_external_changes(p_snapshot TEXT)
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(now) - SUM(seen) FROM (
        SELECT user_id, asset_id, CASE op WHEN 5 THEN -amount ELSE amount END AS now, 0 AS seen
          FROM external_operations WHERE outcome = 1
        UNION ALL
        SELECT user_id, asset_id, 0, external FROM audit_totals
        UNION ALL
        SELECT user_id, asset_id, 0, COALESCE(external, 0) FROM audit_journal_since(p_snapshot)
    ) AS sums GROUP BY user_id, asset_id HAVING SUM(now) <> SUM(seen)
$$;

-- Transfers with an operation, decided either way, that `p_snapshot` does not include.
CREATE FUNCTION audit_transfers_since(p_snapshot TEXT) RETURNS SETOF VARCHAR LANGUAGE sql STABLE AS $$
    SELECT DISTINCT req_id FROM transfer_operations
     WHERE xid >= pg_snapshot_xmin(p_snapshot::pg_snapshot)::text::bigint
       AND NOT pg_visible_in_snapshot(xid::text::xid8, p_snapshot::pg_snapshot)
$$;

-- All balances against all operations, whatever the audit has seen.
CREATE FUNCTION audit_recount()
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    SELECT user_id, asset_id, SUM(held) - SUM(counted) FROM (
        SELECT user_id, asset_id, available + frozen AS held, 0 AS counted FROM balances_tb
        UNION ALL
        SELECT user_id, asset_id, 0, CASE op WHEN 1 THEN -amount ELSE amount END
          FROM transfer_operations WHERE outcome = 1
        UNION ALL
        SELECT user_id, asset_id, 0, CASE op WHEN 5 THEN -amount ELSE amount END
          FROM external_operations WHERE outcome = 1
    ) AS parts GROUP BY user_id, asset_id HAVING SUM(held) <> SUM(counted)
$$;

-- The totals below the watermark against all rows below it. The difference is the first that there is, in the order of the
-- table's columns.
CREATE FUNCTION watermark_recount()
RETURNS TABLE (user_id BIGINT, asset_id INTEGER, difference NUMERIC) LANGUAGE sql STABLE AS $$
    WITH below AS (
        SELECT t.* FROM transfers_tb t, engine_state e WHERE t.order_number < e.watermark
    ), rows AS (
        SELECT o.user_id, o.asset_id, 'funding' || o.op AS part, o.amount
          FROM below JOIN transfer_operations o USING (req_id) WHERE o.outcome = 1
        UNION ALL
        SELECT b.user_id, b.asset_id, 'spot' || claimed.op, b.amount
          FROM below b CROSS JOIN LATERAL unnest(spot_operations(b.transfer_type, b.state)) AS claimed (op)
        UNION ALL
        SELECT x.user_id, x.asset_id, 'outside' || x.op, x.amount
          FROM external_operations x, engine_state e WHERE x.position < e.external_watermark AND x.outcome = 1
    ), totals AS (
        SELECT w.user_id, w.asset_id, parts.part, parts.amount FROM watermark_totals w CROSS JOIN LATERAL (VALUES
            ('funding1', funding_withdrawn), ('funding2', funding_deposited), ('funding3', funding_refunded),
            ('spot1', spot_withdrawn), ('spot2', spot_deposited), ('spot3', spot_refunded),
            ('outside4', external_deposited), ('outside5', external_withdrawn)) AS parts (part, amount)
    )
    SELECT DISTINCT ON (user_id, asset_id) user_id, asset_id, SUM(kept) - SUM(counted) FROM (
        SELECT user_id, asset_id, part, amount AS kept, 0 AS counted FROM totals
        UNION ALL SELECT user_id, asset_id, part, 0, amount FROM rows
    ) AS both_sides GROUP BY user_id, asset_id, part HAVING SUM(kept) <> SUM(counted)
    ORDER BY user_id, asset_id, part
$$;

-- Whether these tables have come from another cluster: what they remember as past is still to come here.
CREATE FUNCTION audit_is_foreign() RETURNS BOOLEAN LANGUAGE sql AS $$
    SELECT pg_snapshot_xmax(snapshot::pg_snapshot) > now_xmax
           OR EXISTS (SELECT 1 FROM transfer_operations WHERE xid >= now_xmax::text::bigint)
           OR EXISTS (SELECT 1 FROM external_operations WHERE xid >= now_xmax::text::bigint)
      FROM audit_state, pg_snapshot_xmax(pg_current_snapshot()) AS now_xmax
$$;

-- Begins anew: for the first audit, and where these tables have come into another cluster, whose transactions have other
-- numbers.
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
        SELECT user_id, asset_id, CASE op WHEN 1 THEN -amount ELSE amount END AS effect, FALSE AS outside
          FROM transfer_operations WHERE outcome = 1
        UNION ALL
        SELECT user_id, asset_id, CASE op WHEN 5 THEN -amount ELSE amount END, TRUE
          FROM external_operations WHERE outcome = 1
    ) AS operations GROUP BY user_id, asset_id;
    -- No transaction has a number below 3: whatever is written from now on is new.
    INSERT INTO audit_state (snapshot) VALUES ('1:1:')
    ON CONFLICT (singleton) DO UPDATE SET snapshot = EXCLUDED.snapshot;
$$;

SELECT audit_rebase();

-- Adds what is new to the totals.
CREATE FUNCTION audit_add(p_snapshot TEXT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO audit_totals AS t (user_id, asset_id, journal, external)
    SELECT user_id, asset_id, journal, COALESCE(external, 0) FROM audit_journal_since(p_snapshot)
    ON CONFLICT (user_id, asset_id) DO UPDATE
    SET journal = t.journal + EXCLUDED.journal, external = t.external + EXCLUDED.external
$$;
