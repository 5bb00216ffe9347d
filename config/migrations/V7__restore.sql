-- ubscore, version 7: the audit knows the cluster whose transactions it counts.
--
-- Every operation remembers its transaction's number, and such numbers mean something in one cluster only. Restored into
-- another, tables may hold numbers that are still to come there (version 3 finds those) or long past; the cluster's own
-- identifier tells both.

-- The identifier of the cluster that has given out the numbers since the audit was last begun anew.
ALTER TABLE audit_state ADD COLUMN system_identifier BIGINT;
-- Numbers of another cluster that are here already are found as before, at the next start.
UPDATE audit_state SET system_identifier = (SELECT system_identifier FROM pg_control_system());
ALTER TABLE audit_state ALTER COLUMN system_identifier SET NOT NULL;

-- Whether these tables have come from another cluster: by its identifier, or since what they remember as past is still to
-- come here.
CREATE OR REPLACE FUNCTION audit_is_foreign() RETURNS BOOLEAN LANGUAGE sql AS $$
    SELECT system_identifier <> (SELECT system_identifier FROM pg_control_system())
           OR pg_snapshot_xmax(snapshot::pg_snapshot) > now_xmax
           OR EXISTS (SELECT 1 FROM transfer_operations WHERE xid >= now_xmax::text::bigint)
           OR EXISTS (SELECT 1 FROM external_operations WHERE xid >= now_xmax::text::bigint)
      FROM audit_state, pg_snapshot_xmax(pg_current_snapshot()) AS now_xmax
$$;

-- As before, and from now on this cluster's.
CREATE OR REPLACE FUNCTION audit_rebase() RETURNS VOID LANGUAGE sql AS $$
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
    INSERT INTO audit_state (snapshot, system_identifier)
    SELECT '1:1:', system_identifier FROM pg_control_system()
    ON CONFLICT (singleton) DO UPDATE
    SET snapshot = EXCLUDED.snapshot, system_identifier = EXCLUDED.system_identifier;
$$;
