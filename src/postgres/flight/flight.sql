-- One flight, in one statement, and so in one transaction. Every part reads from `journal`, so that
-- its key is taken first and nothing is written if it inserts nothing. Rows are compared as they
-- were before the flight.
WITH journal AS (
    INSERT INTO journal_tb (shard, flight, incarnation, attempt, at, durable, open_from,
                            event_first, event_count, entries)
    SELECT shard, $2::bigint, $3::bigint, $68::bigint, $4::timestamptz,
           GREATEST($5::bigint, durable), GREATEST($69::bigint, open_from),
           CASE WHEN $71::integer = 0 THEN event_first + event_count ELSE $70::bigint END,
           $71::integer, $72::bytea
      FROM journal_tb
     WHERE shard = $1::integer AND flight = $2::bigint - 1 AND incarnation = $3::bigint
    RETURNING at
), accepted AS (
    INSERT INTO transfers_tb (order_number, req_id, cid, fingerprint, user_id, asset_id, amount,
                              transfer_type, source_type, state, error_code, log_sequence,
                              retry_count, next_retry_at, created_at, updated_at)
    SELECT a.order_number, a.req_id, a.cid, a.fingerprint, a.user_id, a.asset_id, a.amount,
           a.direction, a.direction, a.state, a.code, a.log_sequence,
           a.retry_count, a.next_retry_at, at, at
      FROM journal CROSS JOIN unnest(
               $6::bigint[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::integer[],
               $12::numeric[], $13::smallint[], $14::smallint[], $15::text[], $16::bigint[],
               $17::integer[], $18::timestamptz[])
           AS a (order_number, req_id, cid, fingerprint, user_id, asset_id, amount, direction,
                 state, code, log_sequence, retry_count, next_retry_at)
), moved AS (
    UPDATE transfers_tb t
       SET state = a.state, error_code = a.code, log_sequence = a.log_sequence,
           retry_count = a.retry_count, next_retry_at = a.next_retry_at, updated_at = at
      FROM journal CROSS JOIN unnest(
               $19::text[], $20::smallint[], $21::bigint[], $22::integer[], $23::numeric[],
               $24::smallint[], $25::text[], $26::bigint[], $27::integer[], $28::timestamptz[])
           AS a (req_id, before, user_id, asset_id, amount, state, code, log_sequence,
                 retry_count, next_retry_at)
     WHERE t.req_id = a.req_id AND t.state = a.before AND t.user_id = a.user_id
       AND t.asset_id = a.asset_id AND t.amount = a.amount
    RETURNING 1
), deferred AS (
    UPDATE transfers_tb t SET retry_count = a.retry_count, next_retry_at = a.next_retry_at
      FROM journal CROSS JOIN unnest(
               $29::text[], $30::smallint[], $31::integer[], $32::timestamptz[])
           AS a (req_id, state, retry_count, next_retry_at)
     WHERE t.req_id = a.req_id AND t.state = a.state
), passed AS (
    INSERT INTO transfer_history (req_id, states, at, attempt, actor, reason, event_id)
    SELECT a.req_id, a.states::smallint[], at, a.attempt, $33::text, a.reason, $70 + place - 1
      FROM journal CROSS JOIN unnest($34::text[], $35::text[], $36::integer[], $37::text[])
           WITH ORDINALITY AS a (req_id, states, attempt, reason, place)
     ORDER BY place
), operated AS (
    INSERT INTO transfer_operations (req_id, op, outcome, code, user_id, asset_id, amount,
                                     balance_after, at)
    SELECT a.req_id, a.op, CASE WHEN a.code IS NULL THEN 1 ELSE 2 END, a.code, a.user_id,
           a.asset_id, a.amount, a.balance_after::numeric, at
      FROM journal CROSS JOIN unnest(
               $38::text[], $39::smallint[], $40::text[], $41::bigint[], $42::integer[],
               $43::numeric[], $44::text[])
           AS a (req_id, op, code, user_id, asset_id, amount, balance_after)
), outside AS (
    INSERT INTO external_operations (idem_key, op, outcome, code, user_id, asset_id, amount,
                                     balance_after, at, order_number)
    SELECT a.idem_key, a.op, CASE WHEN a.code IS NULL THEN 1 ELSE 2 END, a.code, a.user_id,
           a.asset_id, a.amount, a.balance_after::numeric, at, a.order_number
      FROM journal CROSS JOIN unnest(
               $45::text[], $46::smallint[], $47::text[], $48::bigint[], $49::integer[],
               $50::numeric[], $51::text[], $52::bigint[])
           AS a (idem_key, op, code, user_id, asset_id, amount, balance_after, order_number)
), accounts AS (
    SELECT a.user_id, a.before, a.after
      FROM unnest($53::bigint[], $54::smallint[], $55::smallint[]) AS a (user_id, before, after)
), opened AS (
    INSERT INTO accounts_tb (user_id, account_type, status)
    SELECT a.user_id, 1, a.after
      FROM journal CROSS JOIN accounts a WHERE a.before IS NULL AND a.after IS NOT NULL
), changed AS (
    UPDATE accounts_tb t SET status = a.after
      FROM journal CROSS JOIN accounts a
     WHERE t.user_id = a.user_id AND t.account_type = 1 AND t.status = a.before
       AND a.after <> a.before
    RETURNING 1
), balances AS (
    SELECT b.user_id, b.asset_id, b.before::numeric AS before, b.frozen::numeric AS frozen,
           b.version, b.after::numeric AS after
      FROM unnest($56::bigint[], $57::integer[], $58::text[], $59::text[], $60::bigint[],
                  $61::text[])
           AS b (user_id, asset_id, before, frozen, version, after)
), begun AS (
    INSERT INTO balances_tb (user_id, asset_id, account_type, available)
    SELECT b.user_id, b.asset_id, 1, b.after
      FROM journal CROSS JOIN balances b WHERE b.before IS NULL AND b.after IS NOT NULL
), booked AS (
    UPDATE balances_tb t SET available = b.after, version = t.version + 1
      FROM journal CROSS JOIN balances b
     WHERE t.user_id = b.user_id AND t.asset_id = b.asset_id AND t.account_type = 1
       AND t.version = b.version AND t.available = b.before AND t.frozen = b.frozen
       AND b.after IS NOT NULL
    RETURNING 1
), audited AS (
    INSERT INTO admin_audit (at, actor, action, subject, detail, reason)
    SELECT at, a.actor, a.action, a.subject, a.detail, a.reason
      FROM journal CROSS JOIN unnest($62::text[], $63::text[], $64::text[], $65::text[], $66::text[])
           AS a (actor, action, subject, detail, reason)
)
SELECT flight_guard(
    (SELECT count(*) FROM journal), $67::bigint,
    (SELECT count(*) FROM moved), cardinality($19),
    (SELECT count(*) FROM changed)
    + (SELECT count(*) FROM accounts a CROSS JOIN LATERAL (
        SELECT FROM accounts_tb t
         WHERE a.after = a.before AND t.user_id = a.user_id AND t.account_type = 1
           AND t.status = a.before OFFSET 0) AS f),
    (SELECT count(*) FROM accounts WHERE before IS NOT NULL),
    (SELECT count(*) FROM accounts a CROSS JOIN LATERAL (
        SELECT FROM accounts_tb t
         WHERE a.before IS NULL AND t.user_id = a.user_id AND t.account_type = 1 OFFSET 0) AS f),
    (SELECT count(*) FROM booked)
    + (SELECT count(*) FROM balances b CROSS JOIN LATERAL (
        SELECT FROM balances_tb t
         WHERE b.after IS NULL AND t.user_id = b.user_id AND t.asset_id = b.asset_id
           AND t.account_type = 1 AND t.version = b.version AND t.available = b.before
           AND t.frozen = b.frozen OFFSET 0) AS f),
    (SELECT count(*) FROM balances WHERE before IS NOT NULL),
    (SELECT count(*) FROM balances b CROSS JOIN LATERAL (
        SELECT FROM balances_tb t
         WHERE b.before IS NULL AND t.user_id = b.user_id AND t.asset_id = b.asset_id
           AND t.account_type = 1 OFFSET 0) AS f))
