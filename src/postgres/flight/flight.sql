-- One flight, in one statement, and so in one transaction. Every part reads from `journal`, so that
-- its key is taken first and nothing is written if it inserts nothing. Rows are compared as they
-- were before the flight. Each kind of rows is one array of a composite type: it costs less than an
-- array for each column.
--
-- A plain flight has no row for the parts in marks, such as `deferred`. They are cut out of its
-- statement, because PostgreSQL prepares each part of a statement, also one without rows. The same
-- holds of the parts in braces and a flight without recharges. A flight whose acts on recharges are
-- credits of orders lacks the parts in parentheses, and keeps the others.
WITH journal AS (
    INSERT INTO journal_tb (shard, flight, incarnation, attempt, at, durable, open_from,
                            event_first, bytes, event_count, entries)
    SELECT shard, $2::bigint, $3::bigint, $6::bigint, $4::timestamptz,
           GREATEST($5::bigint, durable), GREATEST($7::bigint, open_from),
           CASE WHEN $9::integer = 0 THEN event_first + event_count ELSE $8::bigint END,
           journal_behind(bytes, entries), $9::integer, $10::bytea
      FROM journal_tb
     WHERE shard = $1::integer AND flight = $2::bigint - 1 AND incarnation = $3::bigint
    RETURNING at
), accepted AS (
    INSERT INTO transfers_tb SELECT a.* FROM journal CROSS JOIN unnest($12::transfers_tb[]) AS a
), moved AS (
    -- A decision that stands is never replaced, and a refund rests on a withdrawal that stands.
    UPDATE transfers_tb t
       SET state = a.state, code = COALESCE(t.code, a.code),
           log_sequence = COALESCE(a.log_sequence, t.log_sequence),
           attempts = COALESCE(a.attempts, t.attempts),
           next_retry_at = CASE WHEN a.attempts IS NULL THEN t.next_retry_at
                                ELSE a.next_retry_at END,
           updated_at = at,
           funding_at = COALESCE(t.funding_at, a.funding_at),
           funding_code = COALESCE(t.funding_code, a.funding_code),
           funding_after = COALESCE(t.funding_after, a.funding_after),
           refund_at = COALESCE(t.refund_at, a.refund_at),
           refund_after = COALESCE(t.refund_after, a.refund_after),
           history = t.history || a.history
      FROM journal CROSS JOIN unnest($13::flight_move[]) AS a
     WHERE t.order_number = a.order_number AND t.state = a.before AND t.user_id = a.user_id
       AND t.asset_id = a.asset_id AND t.amount = a.amount
       AND (a.funding_at IS NULL OR t.funding_at IS NULL)
       AND (a.refund_at IS NULL
            OR t.refund_at IS NULL
               AND (a.funding_at IS NOT NULL
                    OR t.funding_at IS NOT NULL AND t.funding_code IS NULL))
    RETURNING 1
--[
--(
), deferred AS (
    UPDATE transfers_tb t SET attempts = a.attempts, next_retry_at = a.next_retry_at
      FROM journal CROSS JOIN unnest($16::flight_deferral[]) AS a
     WHERE t.req_id = a.req_id AND t.state = a.state
--)
), outside AS (
    INSERT INTO external_operations (idem_key, op, code, user_id, asset_id, amount, balance_after,
                                     at, order_number)
    SELECT a.idem_key, a.op, a.code, a.user_id, a.asset_id, a.amount, a.balance_after, at,
           a.order_number
      FROM journal CROSS JOIN unnest($17::flight_external[]) AS a
--(
), apart AS (
    INSERT INTO funding_holds (order_number, user_id, amount, asked, taken, brought, created_at,
                               updated_at, asset_id, state, round, round_code, reason, pays, paid,
                               settled_after, hold_key, purpose, special, deposited, withdrawn)
    SELECT a.order_number, a.user_id, a.amount, a.asked, a.taken, a.brought, at, at, a.asset_id,
           a.state, a.round, a.round_code, a.reason, a.pays, a.paid, a.settled_after, a.hold_key,
           a.purpose, a.special, a.deposited, a.withdrawn
      FROM journal CROSS JOIN unnest($19::flight_hold[]) AS a WHERE a.was_state IS NULL
), acted AS (
    UPDATE funding_holds t
       SET state = a.state, amount = a.amount, round = a.round, round_code = a.round_code,
           asked = a.asked, pays = a.pays, paid = a.paid, taken = a.taken, brought = a.brought,
           deposited = a.deposited, withdrawn = a.withdrawn, settled_after = a.settled_after,
           updated_at = at
      FROM journal CROSS JOIN unnest($19::flight_hold[]) AS a
     WHERE t.hold_key = a.hold_key AND t.order_number = a.order_number
       AND t.user_id = a.user_id AND t.asset_id = a.asset_id AND t.purpose = a.purpose
       AND t.special = a.special
       AND t.state = a.was_state AND t.round = a.was_round AND t.amount = a.was_amount
    RETURNING 1
), cooled AS (
    INSERT INTO freezes_tb (user_id, asset_id, purpose, amount)
    SELECT a.user_id, a.asset_id, a.purpose, a.after
      FROM journal CROSS JOIN unnest($21::flight_freeze[]) AS a WHERE a.before IS NULL
), refrozen AS (
    UPDATE freezes_tb t SET amount = a.after
      FROM journal CROSS JOIN unnest($21::flight_freeze[]) AS a
     WHERE t.user_id = a.user_id AND t.asset_id = a.asset_id AND t.purpose = a.purpose
       AND t.amount = a.before
    RETURNING 1
--)
--]
--{
--(
), orders_made AS (
    INSERT INTO recharges_tb
    SELECT a.* FROM journal CROSS JOIN unnest($22::recharges_tb[]) AS a WHERE a.version = 1
--)
), orders_moved AS (
    UPDATE recharges_tb t
       SET version = a.version, updated_at = a.updated_at, paid_at = a.paid_at,
           next_at = a.next_at, payments = a.payments, held = a.held, attempts = a.attempts,
           state = a.state, closing = a.closing, code = a.code, reference = a.reference,
           pay = a.pay, history = t.history || a.history, follow_req_id = a.follow_req_id,
           follow_state = a.follow_state, follow_code = a.follow_code,
           bonus_state = a.bonus_state
      FROM journal CROSS JOIN unnest($22::recharges_tb[]) AS a
     WHERE t.recharge_id = a.recharge_id AND t.version = a.version - 1 AND a.version > 1
    RETURNING 1
), payments_made AS (
    INSERT INTO channel_payments
    SELECT a.* FROM journal CROSS JOIN unnest($23::channel_payments[]) AS a WHERE a.version = 1
--(
), payments_moved AS (
    UPDATE channel_payments t
       SET version = a.version, user_id = a.user_id, updated_at = a.updated_at,
           recharge_id = a.recharge_id, ordinal = a.ordinal, disposition = a.disposition,
           cause = a.cause
      FROM journal CROSS JOIN unnest($23::channel_payments[]) AS a
     WHERE t.channel = a.channel AND t.trade_no = a.trade_no AND t.version = a.version - 1
       AND a.version > 1
    RETURNING 1
), returns_made AS (
    INSERT INTO recharge_returns
    SELECT a.* FROM journal CROSS JOIN unnest($24::recharge_returns[]) AS a WHERE a.version = 1
), returns_moved AS (
    UPDATE recharge_returns t
       SET version = a.version, updated_at = a.updated_at, next_at = a.next_at, state = a.state,
           code = a.code, attempts = a.attempts
      FROM journal CROSS JOIN unnest($24::recharge_returns[]) AS a
     WHERE t.return_id = a.return_id AND t.version = a.version - 1 AND a.version > 1
    RETURNING 1
--)
), movements AS (
    INSERT INTO recharge_movements
    SELECT a.* FROM journal CROSS JOIN unnest($25::recharge_movements[]) AS a
), told AS (
    INSERT INTO recharge_events
    SELECT a.* FROM journal CROSS JOIN unnest($26::recharge_events[]) AS a
--(
), receivables_made AS (
    INSERT INTO receivables_tb
    SELECT a.* FROM journal CROSS JOIN unnest($27::receivables_tb[]) AS a WHERE a.version = 1
), receivables_moved AS (
    UPDATE receivables_tb t
       SET version = a.version, updated_at = a.updated_at, recovered = a.recovered,
           written_off = a.written_off, acts = t.acts || a.acts
      FROM journal CROSS JOIN unnest($27::receivables_tb[]) AS a
     WHERE t.return_id = a.return_id AND t.version = a.version - 1 AND a.version > 1
    RETURNING 1
--)
--}
), accounts AS (
    SELECT * FROM unnest($14::flight_account[])
--[
--(
), opened AS (
    INSERT INTO accounts_tb (user_id, status)
    SELECT a.user_id, a.after
      FROM journal CROSS JOIN accounts a WHERE a.before IS NULL AND a.after IS NOT NULL
), changed AS (
    UPDATE accounts_tb t SET status = a.after
      FROM journal CROSS JOIN accounts a
     WHERE t.user_id = a.user_id AND t.status = a.before AND a.after <> a.before
    RETURNING 1
--)
--]
), balances AS (
    SELECT * FROM unnest($15::flight_balance[])
--[
--(
), begun AS (
    -- A balance may be begun and set apart by the calls of one flight.
    INSERT INTO balances_tb (user_id, asset_id, available, frozen)
    SELECT b.user_id, b.asset_id, b.after,
           COALESCE((SELECT f.frozen FROM unnest($20::flight_frozen[]) AS f
                      WHERE f.user_id = b.user_id AND f.asset_id = b.asset_id), 0)
      FROM journal CROSS JOIN balances b WHERE b.before IS NULL AND b.after IS NOT NULL
--)
--]
), booked AS (
    UPDATE balances_tb t SET available = b.after, version = t.version + 1
--[
--(
           , frozen = COALESCE((SELECT f.frozen FROM unnest($20::flight_frozen[]) AS f
                                 WHERE f.user_id = b.user_id AND f.asset_id = b.asset_id),
                               t.frozen)
--)
--]
      FROM journal CROSS JOIN balances b
     WHERE t.user_id = b.user_id AND t.asset_id = b.asset_id
       AND t.version = b.version AND t.available = b.before AND t.frozen = b.frozen
       AND b.after IS NOT NULL
    RETURNING 1
--[
--(
), audited AS (
    INSERT INTO admin_audit (at, actor, action, subject, detail, reason)
    SELECT at, a.actor, a.action, a.subject, a.detail, a.reason
      FROM journal CROSS JOIN unnest($18::flight_note[]) AS a
--)
--]
)
SELECT flight_guard(
    (SELECT count(*) FROM journal), $11::bigint,
    (SELECT count(*) FROM moved), cardinality($13),
    (SELECT count(*) FROM accounts a CROSS JOIN LATERAL (
        SELECT FROM accounts_tb t
         WHERE a.after = a.before AND t.user_id = a.user_id AND t.status = a.before OFFSET 0) AS f)
--[
--(
    + (SELECT count(*) FROM changed)
--)
--]
    , (SELECT count(*) FROM accounts WHERE before IS NOT NULL),
    0
--[
--(
    + (SELECT count(*) FROM accounts a CROSS JOIN LATERAL (
        SELECT FROM accounts_tb t
         WHERE a.before IS NULL AND t.user_id = a.user_id OFFSET 0) AS f)
--)
--]
    , (SELECT count(*) FROM booked)
--[
--(
    + (SELECT count(*) FROM balances b CROSS JOIN LATERAL (
        SELECT FROM balances_tb t
         WHERE b.after IS NULL AND t.user_id = b.user_id AND t.asset_id = b.asset_id
           AND t.version = b.version AND t.available = b.before AND t.frozen = b.frozen
         OFFSET 0) AS f)
--)
--]
    , (SELECT count(*) FROM balances WHERE before IS NOT NULL),
    0
--[
--(
    + (SELECT count(*) FROM balances b CROSS JOIN LATERAL (
        SELECT FROM balances_tb t
         WHERE b.before IS NULL AND t.user_id = b.user_id AND t.asset_id = b.asset_id OFFSET 0) AS f)
    , (SELECT count(*) FROM acted),
    (SELECT count(*) FROM unnest($19::flight_hold[]) AS a WHERE a.was_state IS NOT NULL),
    (SELECT count(*) FROM refrozen),
    (SELECT count(*) FROM unnest($21::flight_freeze[]) AS a WHERE a.before IS NOT NULL)
--)
--]
    )
--{
    , recharge_guard(
        (SELECT count(*) FROM orders_moved)
--(
        + (SELECT count(*) FROM payments_moved)
        + (SELECT count(*) FROM returns_moved) + (SELECT count(*) FROM receivables_moved)
--)
        , (SELECT count(*) FROM unnest($22::recharges_tb[]) AS a WHERE a.version > 1)
--(
        + (SELECT count(*) FROM unnest($23::channel_payments[]) AS a WHERE a.version > 1)
        + (SELECT count(*) FROM unnest($24::recharge_returns[]) AS a WHERE a.version > 1)
        + (SELECT count(*) FROM unnest($27::receivables_tb[]) AS a WHERE a.version > 1)
--)
        )
--}
