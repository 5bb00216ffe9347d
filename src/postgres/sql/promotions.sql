-- Promotions: their guard, the way back of a bonus, and their audit. The rules are in
-- src/recharge/promotion.rs.
--
-- bonus_state of an order: 1 RESERVED, 2 RETURNED, 3 GIVEN.

-- Its terms stand: bonuses of before rest on them. Only these change: the money in it, status,
-- ends_at, per_user_max.
CREATE FUNCTION promotions_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE'
       OR (OLD.name, OLD.asset_id, OLD.min_amount, OLD.fixed, OLD.basis_points, OLD.bonus_max,
           OLD.starts_at, OLD.created_at)
          IS DISTINCT FROM
          (NEW.name, NEW.asset_id, NEW.min_amount, NEW.fixed, NEW.basis_points, NEW.bonus_max,
           NEW.starts_at, NEW.created_at) THEN
        RAISE EXCEPTION 'the terms of promotion % stand', OLD.name USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER promotions_guard BEFORE UPDATE OR DELETE ON promotions_tb
    FOR EACH ROW EXECUTE FUNCTION promotions_guard();

-- Gives the reserved bonus of an order that is over back to its promotion, if the order stands in
-- this version. An order of which money is still to go on keeps its time. A bonus that its user has
-- stays: behind a restore a repair writes its operation again before its order knows it. Returns
-- whether it did.
CREATE FUNCTION promotion_give_back(p_incarnation BIGINT, p_recharge UUID, p_version BIGINT)
RETURNS BOOLEAN LANGUAGE plpgsql AS $$
DECLARE
    v_name  TEXT;
    v_bonus BIGINT;
BEGIN
    PERFORM fence_incarnation(p_incarnation);
    UPDATE recharges_tb
       SET bonus_state = 2, version = version + 1, updated_at = clock_timestamp(),
           next_at = CASE WHEN state = 40 AND target = 2 AND follow_state = 0 THEN next_at END,
           history = history
                     || ROW(clock_timestamp(), state, 'till', 'bonus returned')::recharge_step
     WHERE recharge_id = p_recharge AND version = p_version AND bonus_state = 1
       AND state IN (40, -10)
       AND NOT EXISTS (SELECT FROM external_operations
                        WHERE idem_key = 'recharge/' || ulid_text(p_recharge) || '/bonus'
                          AND code IS NULL)
    RETURNING promotion, bonus INTO v_name, v_bonus;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    UPDATE promotions_tb SET available = available + v_bonus, updated_at = clock_timestamp()
     WHERE name = v_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'recharge % has a bonus of no promotion', ulid_text(p_recharge)
            USING ERRCODE = 'UB003';
    END IF;
    RETURN TRUE;
END
$$;

-- Promotions and bonuses that contradict each other, of the rows that were written from p_from to
-- p_to: available + reserved + given is the money that was put in; a GIVEN bonus and its movement,
-- and the reverse.
CREATE FUNCTION audit_promotions(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS TABLE (subject TEXT, what TEXT) LANGUAGE sql STABLE AS $$
    SELECT 'promotion ' || p.name,
           format('has %s available and %s reserved or given, and %s was put in',
                  p.available, used.units, funded.units)
      FROM promotions_tb p
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(r.bonus), 0) AS units FROM recharges_tb r
         WHERE r.promotion = p.name AND r.bonus_state IN (1, 3)) AS used
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(m.amount), 0) AS units FROM recharge_movements m
         WHERE m.kind = 15 AND m.credit = 'promotion/' || p.name) AS funded
     WHERE p.updated_at BETWEEN p_from AND p_to AND p.available + used.units <> funded.units
    UNION ALL
    SELECT 'recharge ' || ulid_text(r.recharge_id),
           format('has bonus %s in bonus_state %s and state %s, and its promotion has moved %s',
                  r.bonus, COALESCE(r.bonus_state::text, 'NULL'), r.state, m.units)
      FROM recharges_tb r
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(m.amount), 0) AS units FROM recharge_movements m
         WHERE m.movement_key = 'recharge/' || ulid_text(r.recharge_id) || '/bonus'
           AND m.kind = 13 AND m.asset_id = r.asset_id
           AND m.debit = 'promotion/' || r.promotion AND m.credit = 'user/' || r.user_id) AS m
     WHERE r.promotion IS NOT NULL AND r.state = 40 AND r.paid_at BETWEEN p_from AND p_to
       AND m.units <> CASE WHEN r.bonus_state = 3 THEN r.bonus ELSE 0 END
    UNION ALL
    SELECT m.movement_key::text,
           -- A CLOSED one was PAID before a restore.
           format('moves %s of asset %s from %s to %s, and no order that is over has that bonus',
                  m.amount, m.asset_id, m.debit, m.credit)
      FROM recharge_movements m
     WHERE m.at BETWEEN p_from AND p_to AND m.kind = 13
       AND NOT EXISTS (
           SELECT FROM recharges_tb r
            WHERE r.recharge_id = m.recharge_id AND r.bonus_state = 3 AND r.state IN (40, -10)
              AND m.movement_key = 'recharge/' || ulid_text(r.recharge_id) || '/bonus'
              AND (r.bonus, r.asset_id) = (m.amount, m.asset_id)
              AND m.debit = 'promotion/' || r.promotion)
$$;
