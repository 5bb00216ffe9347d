-- The life of the journal: a row stays until the audit has folded it, the webhooks have collected
-- its events, and it is old enough (see events_purge).

-- The bytes of a shard's rows up to this one. p_bytes: those before it. A row has some 128 bytes
-- beside its entries, with its place in the index.
CREATE FUNCTION journal_behind(p_bytes BIGINT, p_entries BYTEA) RETURNS BIGINT
LANGUAGE sql STABLE AS $$
    SELECT p_bytes + 128 + pg_column_size(p_entries)
$$;

-- The bytes of all rows but the last p_spare of each shard, which are never deleted.
CREATE FUNCTION journal_bytes(p_spare BIGINT) RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT COALESCE(SUM(GREATEST(s.bytes - f.bytes, 0)), 0)::bigint
      FROM journal_last l
     CROSS JOIN LATERAL (SELECT bytes FROM journal_tb j WHERE j.shard = l.shard
                          ORDER BY flight LIMIT 1) AS f
      JOIN journal_tb s ON s.shard = l.shard AND s.flight = l.flight - p_spare
$$;

-- The event up to which rows are deleted before their time: the one with which the first shard
-- loses p_rows. Each shard with rows that may go loses the same time. A shard without events in
-- these rows has no time to lose, and counts only if it is alone. NULL: no row may go.
CREATE FUNCTION journal_young(p_spare BIGINT, p_rows BIGINT) RETURNS BIGINT
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(min(j.event_first) FILTER (WHERE j.event_first > f.event_first),
                    min(j.event_first))
      FROM journal_last l
      JOIN audit_folded a USING (shard)
      LEFT JOIN webhook_cursor c USING (shard)
     CROSS JOIN LATERAL (SELECT flight, event_first FROM journal_tb j WHERE j.shard = l.shard
                          ORDER BY flight LIMIT 1) AS f
      JOIN journal_tb j
        ON j.shard = l.shard
       AND j.flight = LEAST(l.flight - p_spare + 1, a.flight + 2, c.flight + 1, f.flight + p_rows)
     WHERE j.flight > f.flight + 1
$$;

-- Deletes rows of the journal that are folded into audit_totals and have only events below p_event:
-- an unbroken low end of each shard, at most p_rows of one, and never its last p_spare rows. The
-- last row below p_event stays: it was the last one of the shard at that event (see journal_at). A
-- row with events that are not in webhook_deliveries yet stays until they are below p_late. Returns
-- the largest number of rows that were deleted of one shard.
CREATE FUNCTION journal_trim(p_event BIGINT, p_late BIGINT, p_spare BIGINT, p_rows BIGINT)
RETURNS BIGINT LANGUAGE sql AS $$
    WITH ends AS (
        SELECT l.shard, f.flight AS first, c.flight AS collected,
               LEAST(l.flight - GREATEST(p_spare, 1) + 1, a.flight + 2, f.flight + p_rows + 1)
                   AS bound
          FROM journal_last l
          JOIN audit_folded a USING (shard)
          LEFT JOIN webhook_cursor c USING (shard)
         CROSS JOIN LATERAL (SELECT flight FROM journal_tb j WHERE j.shard = l.shard
                              ORDER BY flight LIMIT 1) AS f
    ), kept AS (
        SELECT shard, COALESCE((SELECT flight FROM journal_tb j
                                 WHERE j.shard = ends.shard AND flight >= first AND flight < bound
                                   AND event_first + event_count
                                       > CASE WHEN flight > collected THEN LEAST(p_event, p_late)
                                              ELSE p_event END
                                 ORDER BY flight LIMIT 1), bound) - 1 AS first
          FROM ends WHERE first < bound
    ), gone AS (
        DELETE FROM journal_tb j USING kept
         WHERE j.shard = kept.shard AND j.flight < kept.first
        RETURNING j.shard
    )
    SELECT COALESCE(max(rows), 0) FROM (SELECT count(*) AS rows FROM gone GROUP BY shard) AS shards
$$;
