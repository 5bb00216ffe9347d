-- Recharges: the rules that Rust and PostgreSQL share, and their guards. Tests in
-- tests/recharges/guarded.rs compare each with its twin in src/recharge/.
--
-- Orders: 0 INIT, 10 PAYING, 40 PAID, -10 CLOSED. Payments: 10 HELD, 20 RETURNING, 40 CREDITED,
-- -30 RETURNED, -40 DISMISSED. Returns: 0 requested, 10 ready, 20 sent, 40 done, -10 failed.

-- Whether an order in state p_old may be in state p_new some commits later.
CREATE FUNCTION recharge_state_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_old
        WHEN 0 THEN p_new IN (10, 40, -10)
        WHEN 10 THEN p_new IN (40, -10)
        ELSE FALSE
    END
$$;

-- The same of payments. A flight may take one from HELD over RETURNING.
CREATE FUNCTION payment_disposition_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_old IN (10, 20) AND p_new IN (10, 20, 40, -30, -40)
$$;

-- The same of returns.
CREATE FUNCTION return_state_admits(p_old SMALLINT, p_new SMALLINT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE p_old
        WHEN 0 THEN p_new IN (10, 20, 40, -10)
        WHEN 10 THEN p_new IN (20, 40, -10)
        WHEN 20 THEN p_new IN (40, -10)
        ELSE FALSE
    END
$$;

-- The end of a flight with recharges: as many rows were there as the process holds.
CREATE FUNCTION recharge_guard(p_found BIGINT, p_held BIGINT) RETURNS TEXT
LANGUAGE plpgsql AS $$
BEGIN
    IF p_found <> p_held THEN
        RAISE EXCEPTION '% of % rows of recharges are as the process holds them', p_found, p_held
            USING ERRCODE = 'UB016';
    END IF;
    RETURN 'written';
END
$$;

-- An order only goes to states that follow its own, and a terminal one stands: it may lose the data
-- of its payer, and its money may go on once. Its body never changes, and its history only grows.
CREATE FUNCTION recharges_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'recharge % stands', ulid_text(OLD.recharge_id) USING ERRCODE = 'UB003';
    END IF;
    IF OLD.state <> NEW.state AND NOT recharge_state_admits(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'recharge % cannot go from state % to %',
            ulid_text(OLD.recharge_id), OLD.state, NEW.state USING ERRCODE = 'UB003';
    END IF;
    IF (OLD.recharge_id, OLD.user_id, OLD.asset_id, OLD.amount, OLD.bonus, OLD.minor_units,
        OLD.target, OLD.channel, OLD.promotion, OLD.idem_key, OLD.fingerprint, OLD.created_at)
       IS DISTINCT FROM
       (NEW.recharge_id, NEW.user_id, NEW.asset_id, NEW.amount, NEW.bonus, NEW.minor_units,
        NEW.target, NEW.channel, NEW.promotion, NEW.idem_key, NEW.fingerprint, NEW.created_at)
       OR NEW.version <> OLD.version + 1 OR NEW.payments < OLD.payments
       OR OLD.closing IS NOT NULL AND NEW.closing IS DISTINCT FROM OLD.closing
       OR NEW.history[1:cardinality(OLD.history)] IS DISTINCT FROM OLD.history
       OR OLD.follow_req_id IS NOT NULL AND NEW.follow_req_id IS DISTINCT FROM OLD.follow_req_id
       OR OLD.follow_state <> 0
          AND (OLD.follow_state, OLD.follow_req_id, OLD.follow_code)
              IS DISTINCT FROM (NEW.follow_state, NEW.follow_req_id, NEW.follow_code)
       OR OLD.state IN (40, -10)
          AND ((OLD.paid_at, OLD.code, OLD.closing, OLD.expires_at, OLD.reference)
               IS DISTINCT FROM
               (NEW.paid_at, NEW.code, NEW.closing, NEW.expires_at, NEW.reference)
               OR NEW.pay IS NOT NULL AND NEW.pay IS DISTINCT FROM OLD.pay) THEN
        RAISE EXCEPTION 'recharge % cannot be changed like that', ulid_text(OLD.recharge_id)
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER recharges_guard BEFORE UPDATE OR DELETE ON recharges_tb
    FOR EACH ROW EXECUTE FUNCTION recharges_guard();

-- The facts of a payment stand, and so does its end.
CREATE FUNCTION channel_payments_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'payment % stands', ulid_text(OLD.payment_id) USING ERRCODE = 'UB003';
    END IF;
    IF OLD.disposition NOT IN (10, 20)
       OR NOT payment_disposition_admits(OLD.disposition, NEW.disposition) THEN
        RAISE EXCEPTION 'payment % cannot go from % to %',
            ulid_text(OLD.payment_id), OLD.disposition, NEW.disposition USING ERRCODE = 'UB003';
    END IF;
    IF (OLD.channel, OLD.trade_no, OLD.payment_id, OLD.merchant_no, OLD.minor_units, OLD.currency,
        OLD.asset_id, OLD.amount, OLD.paid_at, OLD.seen_by, OLD.at)
       IS DISTINCT FROM
       (NEW.channel, NEW.trade_no, NEW.payment_id, NEW.merchant_no, NEW.minor_units, NEW.currency,
        NEW.asset_id, NEW.amount, NEW.paid_at, NEW.seen_by, NEW.at)
       OR NEW.version <> OLD.version + 1
       OR OLD.recharge_id IS NOT NULL AND NEW.recharge_id IS DISTINCT FROM OLD.recharge_id
       OR OLD.ordinal IS NOT NULL AND NEW.ordinal IS DISTINCT FROM OLD.ordinal THEN
        RAISE EXCEPTION 'payment % cannot be changed like that', ulid_text(OLD.payment_id)
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER channel_payments_guard BEFORE UPDATE OR DELETE ON channel_payments
    FOR EACH ROW EXECUTE FUNCTION channel_payments_guard();

-- A return only goes to states that follow its own, and its end stands.
CREATE FUNCTION recharge_returns_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'return % stands', ulid_text(OLD.return_id) USING ERRCODE = 'UB003';
    END IF;
    IF OLD.state <> NEW.state AND NOT return_state_admits(OLD.state, NEW.state)
       OR OLD.state IN (40, -10) OR NEW.version <> OLD.version + 1
       OR (OLD.return_id, OLD.payment_id, OLD.kind, OLD.minor_units, OLD.bonus, OLD.idem_key,
           OLD.created_at)
          IS DISTINCT FROM
          (NEW.return_id, NEW.payment_id, NEW.kind, NEW.minor_units, NEW.bonus, NEW.idem_key,
           NEW.created_at)
       OR OLD.channel_return_no IS NOT NULL
          AND NEW.channel_return_no IS DISTINCT FROM OLD.channel_return_no
    THEN
        RAISE EXCEPTION 'return % cannot be changed like that', ulid_text(OLD.return_id)
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER recharge_returns_guard BEFORE UPDATE OR DELETE ON recharge_returns
    FOR EACH ROW EXECUTE FUNCTION recharge_returns_guard();

CREATE TRIGGER recharge_events_guard BEFORE UPDATE OR DELETE ON recharge_events
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- A receivable is closed in parts, and no part comes back.
CREATE FUNCTION receivables_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR NEW.version <> OLD.version + 1
       OR NEW.recovered < OLD.recovered OR NEW.written_off < OLD.written_off
       OR (OLD.return_id, OLD.user_id, OLD.asset_id, OLD.amount, OLD.at)
          IS DISTINCT FROM (NEW.return_id, NEW.user_id, NEW.asset_id, NEW.amount, NEW.at) THEN
        RAISE EXCEPTION 'receivable % cannot be changed like that', ulid_text(OLD.return_id)
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER receivables_guard BEFORE UPDATE OR DELETE ON receivables_tb
    FOR EACH ROW EXECUTE FUNCTION receivables_guard();

CREATE TRIGGER recharge_movements_guard BEFORE UPDATE OR DELETE ON recharge_movements
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- Payments and accounts of movements are keyed by the name of a channel: it stays with its
-- merchant.
CREATE FUNCTION channels_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR (OLD.name, OLD.merchant, OLD.created_at)
       IS DISTINCT FROM (NEW.name, NEW.merchant, NEW.created_at) THEN
        RAISE EXCEPTION 'channel % belongs to one merchant for ever', OLD.name
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER channels_guard BEFORE UPDATE OR DELETE ON channels_tb
    FOR EACH ROW EXECUTE FUNCTION channels_guard();

-- Rows of recharges that contradict each other, of those that were written from p_from to p_to: a
-- movement of a user and its external operation, and the reverse; a payment and its movements, or
-- its return; a PAID order and its payment.
CREATE FUNCTION audit_recharges(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS TABLE (subject TEXT, what TEXT) LANGUAGE sql STABLE AS $$
    SELECT m.movement_key::text,
           format('moves %s of asset %s from %s to %s, and the external operation of its key %s',
                  m.amount, m.asset_id, m.debit, m.credit,
                  CASE WHEN x.idem_key IS NULL THEN 'is missing' ELSE 'is another one' END)
      FROM recharge_movements m
      LEFT JOIN external_operations x ON x.idem_key = m.movement_key
     WHERE m.at BETWEEN p_from AND p_to AND (m.debit LIKE 'user/%' OR m.credit LIKE 'user/%')
       AND (x.idem_key IS NULL OR x.code IS NOT NULL
            OR (x.asset_id, x.amount) <> (m.asset_id, m.amount)
            OR 'user/' || x.user_id <> CASE x.op WHEN 4 THEN m.credit ELSE m.debit END)
    UNION ALL
    -- The index that finds them has these words.
    SELECT x.idem_key::text,
           format('is an external operation of %s of asset %s for user %s, and has no movement',
                  x.amount, x.asset_id, x.user_id)
      FROM external_operations x
     WHERE (x.idem_key LIKE 'recharge/%' OR x.idem_key LIKE 'payment/%'
            OR x.idem_key LIKE 'return/%')
       AND x.at BETWEEN p_from AND p_to
       AND NOT EXISTS (SELECT FROM recharge_movements m WHERE m.movement_key = x.idem_key)
    UNION ALL
    SELECT 'payment ' || ulid_text(p.payment_id), 'is RETURNING without an open return'
      FROM channel_payments p
     WHERE p.updated_at BETWEEN p_from AND p_to AND p.disposition = 20
       AND NOT EXISTS (SELECT FROM recharge_returns r
                        WHERE r.payment_id = p.payment_id AND r.state IN (0, 10, 20))
    UNION ALL
    SELECT 'payment ' || ulid_text(p.payment_id),
           format('has disposition %s and amount %s, and its movements leave %s in suspense and '
                  '%s with users', p.disposition, COALESCE(p.amount, 0), s.suspended, s.credited)
      FROM channel_payments p CROSS JOIN LATERAL (
        SELECT COALESCE(sum(CASE WHEN credit = p.channel || '/suspense' THEN amount
                                 WHEN debit = p.channel || '/suspense' THEN -amount END), 0)
                   AS suspended,
               COALESCE(sum(amount) FILTER (WHERE credit LIKE 'user/%'), 0) AS credited,
               COALESCE(bool_and(credit = 'user/' || p.user_id)
                        FILTER (WHERE credit LIKE 'user/%'), TRUE) AS to_its_user
          FROM recharge_movements WHERE payment_id = p.payment_id) AS s
     WHERE p.updated_at BETWEEN p_from AND p_to
       AND (s.suspended <> CASE WHEN p.disposition IN (10, 20) THEN COALESCE(p.amount, 0) ELSE 0 END
            OR s.credited <> CASE WHEN p.disposition = 40 THEN p.amount ELSE 0 END
            OR NOT s.to_its_user)
    UNION ALL
    SELECT 'recharge ' || ulid_text(r.recharge_id),
           format('is PAID, and %s of its payments are credited under its key', c.credits)
      FROM recharges_tb r CROSS JOIN LATERAL (
        SELECT count(*) AS credits
          FROM channel_payments p
          JOIN recharge_movements m ON m.payment_id = p.payment_id
         WHERE p.recharge_id = r.recharge_id AND p.disposition = 40
           AND m.movement_key = 'recharge/' || ulid_text(r.recharge_id) || '/credit'
           AND m.amount = p.amount AND m.credit = 'user/' || r.user_id) AS c
     WHERE r.state = 40 AND r.paid_at BETWEEN p_from AND p_to AND c.credits <> 1
$$;
