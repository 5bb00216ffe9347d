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
       -- A reserved bonus ends once: given with the credit, or returned behind the end.
       OR NEW.bonus_state IS DISTINCT FROM OLD.bonus_state
          AND (OLD.bonus_state IS DISTINCT FROM 1
               OR NEW.bonus_state = 3 AND (OLD.state, NEW.state) <> (-10, -10)
                  AND (OLD.state = 40 OR NEW.state <> 40)
               OR NEW.bonus_state = 2 AND NEW.state NOT IN (40, -10)
               OR NEW.bonus_state IS NULL)
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
    -- Behind a restore a CLOSED order may have been PAID before: its user has the bonus.
    IF NEW.bonus_state = 3 AND OLD.bonus_state = 1 AND NEW.state = -10 THEN
        PERFORM FROM external_operations
          WHERE idem_key = 'recharge/' || ulid_text(NEW.recharge_id) || '/bonus';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'recharge % is closed, and no bonus was given',
                ulid_text(OLD.recharge_id) USING ERRCODE = 'UB003';
        END IF;
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
       OR NEW.code IS NOT NULL AND NEW.state <> -10
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
       OR NEW.acts[1:cardinality(OLD.acts)] IS DISTINCT FROM OLD.acts
       OR (OLD.return_id, OLD.payment_id, OLD.user_id, OLD.asset_id, OLD.amount, OLD.at)
          IS DISTINCT FROM
          (NEW.return_id, NEW.payment_id, NEW.user_id, NEW.asset_id, NEW.amount, NEW.at) THEN
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
-- Whether money of a return is set apart now: that of a CREDITED payment that is READY or SENT.
CREATE FUNCTION return_holds(p_kind SMALLINT, p_state SMALLINT, p_disposition SMALLINT)
RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$
    SELECT p_kind = 1 AND p_state IN (10, 20) AND p_disposition = 40
$$;

-- The same of returns and receivables: a return and its movements through clearing; a refund and
-- its hold, and the reverse; the bonus that goes with it; the user's part of takings; a
-- receivable and its movements.
CREATE FUNCTION audit_returns(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS TABLE (subject TEXT, what TEXT) LANGUAGE sql STABLE AS $$
    WITH written AS MATERIALIZED (
        SELECT r.return_id, r.kind, r.state, r.payment_id, p.channel, p.user_id, p.asset_id,
               p.disposition, r.bonus, 'return/' || ulid_text(r.return_id) AS key,
               -- By the measure of the payment itself. No asset stands for it: nothing moves.
               COALESCE(r.minor_units::numeric * (p.amount / p.minor_units), 0) AS amount
          FROM recharge_returns r LEFT JOIN channel_payments p USING (payment_id)
         WHERE r.updated_at BETWEEN p_from AND p_to
    )
    SELECT w.key, format('is of kind %s in state %s, and its movements change clearing by %s '
                         'instead of %s', w.kind, w.state, m.change, w.due)
      FROM (SELECT *, CASE WHEN state <> 40 THEN 0 WHEN kind = 3 THEN amount ELSE -amount END
                      AS due FROM written) AS w
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(CASE WHEN debit = w.channel || '/clearing' THEN amount
                                 WHEN credit = w.channel || '/clearing' THEN -amount END), 0)
                   AS change
          FROM recharge_movements
         WHERE payment_id = w.payment_id
           AND (movement_key = w.key OR starts_with(movement_key, w.key || '/'))
           AND kind <> 14) AS m
     WHERE m.change <> w.due OR w.channel IS NULL
    UNION ALL
    SELECT w.key, format('has %s to be set apart, and its hold has %s',
                         CASE WHEN return_holds(w.kind, w.state, w.disposition)
                              THEN w.amount ELSE 0 END, COALESCE(h.amount, 0))
      FROM written w
      LEFT JOIN funding_holds h
             ON h.state = 10
                AND h.hold_key = 'return:' || ulid_text(w.return_id) || ':' || w.user_id || ':'
                                 || w.asset_id
     WHERE w.kind = 1
       AND COALESCE(h.amount, 0) <> CASE WHEN return_holds(w.kind, w.state, w.disposition)
                                         THEN w.amount ELSE 0 END
    UNION ALL
    -- The bonus that goes with it: apart in a hold of its own, then out of our books.
    SELECT w.key, format('has bonus %s in state %s, %s of it is set apart, and %s has moved',
                         w.bonus, w.state, b.apart, b.moved)
      FROM written w
     CROSS JOIN LATERAL (
        SELECT (SELECT COALESCE(sum(h.amount), 0) FROM funding_holds h
                 WHERE h.state = 10
                   AND h.hold_key = 'bonus:' || ulid_text(w.return_id) || ':' || w.user_id || ':'
                                    || w.asset_id) AS apart,
               (SELECT COALESCE(sum(m.amount), 0) FROM recharge_movements m
                 WHERE m.movement_key = w.key || '/bonus' AND m.kind = 14
                   AND m.debit = 'user/' || w.user_id AND m.credit = 'outside') AS moved,
               -- Of a refused refund: the channel has taken it meanwhile, and its bonus goes too.
               (SELECT COALESCE(sum(m.amount), 0) FROM recharge_movements m
                 WHERE m.movement_key = w.key || '/taken' AND w.state = -10) AS taken) AS b
     WHERE (b.apart, b.moved)
           <> (CASE WHEN return_holds(w.kind, w.state, w.disposition) THEN w.bonus ELSE 0 END,
               CASE WHEN w.state = 40 THEN w.bonus
                    WHEN b.taken > 0 THEN div(w.bonus * b.taken + w.amount - 1, w.amount)
                    ELSE 0 END)
    UNION ALL
    -- Its user bears the money taken of a payment, at most the part that refunds leave of it, but
    -- for a part that was written off: no user gets more than was paid.
    SELECT 'payment ' || ulid_text(p.payment_id),
           format('has %s taken for its user to bear, with %s written off, and its user has paid '
                  '%s and owes %s', d.due, o.written_off, m.paid, o.open)
      FROM (SELECT DISTINCT payment_id FROM written WHERE disposition = 40) AS w
      JOIN channel_payments p USING (payment_id)
     CROSS JOIN LATERAL (
        SELECT COALESCE(p.amount / p.minor_units, 0)
               * LEAST(GREATEST(p.minor_units - COALESCE(sum(r.minor_units)
                                    FILTER (WHERE r.kind = 1 AND r.state <> -10), 0), 0),
                       GREATEST(COALESCE(sum(CASE r.kind WHEN 2 THEN r.minor_units
                                                         WHEN 3 THEN -r.minor_units END), 0), 0))
               AS due
          FROM recharge_returns r WHERE r.payment_id = p.payment_id) AS d
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(CASE WHEN kind IN (6, 10) AND debit = 'user/' || p.user_id THEN amount
                                 WHEN kind = 8 AND credit = 'user/' || p.user_id
                                 THEN -amount END), 0) AS paid
          FROM recharge_movements WHERE payment_id = p.payment_id) AS m
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(amount - recovered - written_off), 0) AS open,
               COALESCE(sum(written_off), 0) AS written_off
          FROM receivables_tb WHERE payment_id = p.payment_id) AS o
     WHERE m.paid + o.open + o.written_off < d.due
    UNION ALL
    SELECT h.hold_key, 'is an open hold without a return under way'
      FROM funding_holds h
     WHERE h.state = 10 AND h.reason = 2 AND h.created_at BETWEEN p_from AND p_to
       AND NOT EXISTS (SELECT FROM recharge_returns r JOIN channel_payments p USING (payment_id)
                        WHERE r.return_id = ulid_uuid(split_part(h.hold_key, ':', 2))
                          AND return_holds(r.kind, r.state, p.disposition))
    UNION ALL
    SELECT 'receivable ' || ulid_text(r.return_id),
           format('is %s with %s recovered and %s written off, and its movements are %s, %s and '
                  '%s, and its acts %s',
                  r.amount, r.recovered, r.written_off, m.opened, m.recovered, m.written_off,
                  a.ended)
      FROM receivables_tb r
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(amount) FILTER (WHERE kind = 7), 0) AS opened,
               COALESCE(sum(amount) FILTER (WHERE kind = 10), 0) AS recovered,
               COALESCE(sum(amount) FILTER (WHERE kind = 11), 0) AS written_off
          FROM recharge_movements
         WHERE payment_id = r.payment_id
           AND starts_with(movement_key, 'return/' || ulid_text(r.return_id) || '/')) AS m
     CROSS JOIN LATERAL (
        SELECT COALESCE(sum(amount), 0) AS ended,
               COALESCE(sum(amount) FILTER (WHERE kind = 3), 0) AS given_back
          FROM unnest(r.acts)) AS a
     WHERE r.updated_at BETWEEN p_from AND p_to
       AND (r.amount, r.recovered, r.written_off, r.recovered + r.written_off)
           <> (m.opened, m.recovered + a.given_back, m.written_off, a.ended)
$$;

-- Rows of recharges that contradict each other, of those that were written from p_from to p_to: a
-- movement of a user and its external operation, and the reverse; a payment and its movements, or
-- its return; a PAID order and its payment; returns and receivables, see audit_returns. Promotions
-- have a function of their own: theirs adds up all orders of one, and may be late alone.
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
    -- The index that finds them has these words. A repair behind a restore writes the operation
    -- again before its order is back: no false sum.
    SELECT x.idem_key::text,
           CASE WHEN x.at <= (SELECT restored_at FROM engine_state)
                THEN 'RECOVER_NEEDED: ' ELSE '' END
           || format('is an external operation of %s of asset %s for user %s, and has no movement',
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
               -- By takings of its channel, less the money that came back.
               COALESCE(sum(CASE WHEN kind = 6 AND debit = p.channel || '/suspense' THEN amount
                                 WHEN kind = 8 AND credit = p.channel || '/suspense'
                                 THEN -amount END), 0) AS taken,
               COALESCE(sum(amount) FILTER (WHERE kind = 1 AND credit LIKE 'user/%'), 0)
                   AS credited,
               COALESCE(bool_and('user/' || p.user_id IN (debit, credit))
                        FILTER (WHERE debit LIKE 'user/%' OR credit LIKE 'user/%'), TRUE)
                   AS to_its_user
          FROM recharge_movements WHERE payment_id = p.payment_id) AS s
     WHERE p.updated_at BETWEEN p_from AND p_to
       AND (s.suspended <> CASE WHEN p.disposition IN (10, 20)
                                THEN COALESCE(p.amount, 0) - s.taken ELSE 0 END
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
    UNION ALL
    SELECT subject, what FROM audit_returns(p_from, p_to)
$$;

-- The accounts of channels, by their movements, and by the rows that they come from: clearing is
-- paid - returned - taken + given_back - fees - bank. The fees are those of bills; no row but its
-- movement stands for money that has reached the bank. Smallest units.
CREATE FUNCTION recharge_accounts()
RETURNS TABLE (channel TEXT, asset_id INTEGER, paid NUMERIC, returned NUMERIC, taken NUMERIC,
               given_back NUMERIC, owed NUMERIC, clearing NUMERIC, suspense NUMERIC,
               receivable NUMERIC, loss NUMERIC, fees NUMERIC, bank NUMERIC, fees_moved NUMERIC)
LANGUAGE sql STABLE AS $$
    SELECT channel, asset_id, sum(paid), sum(returned), sum(taken), sum(given_back), sum(owed),
           sum(clearing), sum(suspense), sum(receivable), sum(loss), sum(fees), sum(bank),
           sum(fees_moved)
      FROM (
        SELECT p.channel::text, p.asset_id,
               -- A payment that its channel had given back before it was seen has no movement.
               CASE WHEN p.disposition = -30
                     AND NOT EXISTS (SELECT FROM recharge_returns r
                                      WHERE r.payment_id = p.payment_id AND r.kind = 1
                                        AND r.state = 40)
                    THEN 0 ELSE p.amount END AS paid,
               0 AS returned, 0 AS taken, 0 AS given_back, 0 AS owed, 0 AS clearing,
               0 AS suspense, 0 AS receivable, 0 AS loss, 0 AS fees, 0 AS bank, 0 AS fees_moved
          FROM channel_payments p WHERE p.amount IS NOT NULL
        UNION ALL
        SELECT p.channel, p.asset_id, 0, CASE r.kind WHEN 1 THEN u.units ELSE 0 END,
               CASE r.kind WHEN 2 THEN u.units ELSE 0 END,
               CASE r.kind WHEN 3 THEN u.units ELSE 0 END, 0, 0, 0, 0, 0, 0, 0, 0
          FROM recharge_returns r JOIN channel_payments p USING (payment_id)
         CROSS JOIN LATERAL (
            SELECT r.minor_units::numeric * (p.amount / p.minor_units) AS units) AS u
         WHERE r.state = 40 AND p.amount IS NOT NULL
        UNION ALL
        SELECT p.channel, r.asset_id, 0, 0, 0, 0, r.amount - r.recovered - r.written_off, 0, 0, 0,
               0, 0, 0, 0
          FROM receivables_tb r JOIN channel_payments p USING (payment_id)
        UNION ALL
        SELECT b.channel, b.asset_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, b.fees_units, 0, 0
          FROM channel_bills b WHERE b.fees_units <> 0
        UNION ALL
        SELECT split_part(side.account, '/', 1), m.asset_id, 0, 0, 0, 0, 0,
               CASE split_part(side.account, '/', 2) WHEN 'clearing' THEN side.units ELSE 0 END,
               CASE split_part(side.account, '/', 2) WHEN 'suspense' THEN -side.units ELSE 0 END,
               CASE split_part(side.account, '/', 2) WHEN 'receivable' THEN side.units ELSE 0 END,
               CASE split_part(side.account, '/', 2) WHEN 'loss' THEN side.units ELSE 0 END, 0,
               CASE split_part(side.account, '/', 2) WHEN 'bank' THEN side.units ELSE 0 END,
               CASE split_part(side.account, '/', 2) WHEN 'fees' THEN side.units ELSE 0 END
          FROM recharge_movements m
         CROSS JOIN LATERAL (VALUES (m.debit, m.amount), (m.credit, -m.amount))
               AS side (account, units)
         WHERE side.account NOT LIKE 'user/%' AND side.account NOT LIKE 'promotion/%'
           AND side.account <> 'outside'
      ) AS parts GROUP BY channel, asset_id
$$;

-- Accounts that differ from the rows that they come from.
CREATE FUNCTION audit_recharge_accounts()
RETURNS TABLE (subject TEXT, what TEXT) LANGUAGE sql STABLE AS $$
    SELECT format('channel %s, asset %s', channel, asset_id),
           format('has clearing %s, receivable %s and fees %s by its movements, and %s, %s and %s '
                  'by its payments, returns, receivables and bills', clearing, receivable,
                  fees_moved, paid - returned - taken + given_back - fees - bank, owed, fees)
      FROM recharge_accounts()
     WHERE (clearing, receivable, fees_moved)
           <> (paid - returned - taken + given_back - fees - bank, owed, fees)
$$;
