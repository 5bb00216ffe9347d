-- The life of the journal: a row stays until the audit has folded it and it is old enough.

-- Deletes rows of the journal that are folded into audit_totals and hold only events below
-- p_event: an unbroken low end of each shard, at most p_rows of a shard, and never its last p_keep
-- rows. Returns the largest number of rows that it has deleted of a shard.
CREATE FUNCTION journal_trim(p_event BIGINT, p_keep BIGINT, p_rows BIGINT) RETURNS BIGINT
LANGUAGE sql AS $$
    WITH ends AS (
        SELECT l.shard, f.flight AS first,
               LEAST(l.flight - GREATEST(p_keep, 1), a.flight, f.flight + p_rows - 1) AS last
          FROM journal_last l
          JOIN audit_folded a USING (shard)
         CROSS JOIN LATERAL (SELECT flight FROM journal_tb j WHERE j.shard = l.shard
                              ORDER BY flight LIMIT 1) AS f
    ), old AS (
        SELECT shard, COALESCE((SELECT flight - 1 FROM journal_tb j
                                 WHERE j.shard = ends.shard AND flight BETWEEN first AND last
                                   AND event_first + event_count > p_event
                                 ORDER BY flight LIMIT 1), last) AS last
          FROM ends WHERE first <= last
    ), gone AS (
        DELETE FROM journal_tb j USING old
         WHERE j.shard = old.shard AND j.flight <= old.last
        RETURNING j.shard
    )
    SELECT COALESCE(max(rows), 0) FROM (SELECT count(*) AS rows FROM gone GROUP BY shard) AS shards
$$;

-- Deletes rows of the journal that are older than p_keep_ms of lived time: p_lived_ms now, see
-- watermark_lived. At most p_rows of a shard; returns the largest number that went of a shard.
--
-- The last 1,000 rows of a shard stay at any age: a process compares a new connection with rows
-- that it has written, and a start with those that are noted beside the log.
CREATE FUNCTION journal_forget(p_lived_ms BIGINT, p_keep_ms BIGINT, p_rows BIGINT) RETURNS BIGINT
LANGUAGE plpgsql AS $$
DECLARE
    v_event BIGINT;
BEGIN
    -- 16 sightings in a keep time are fine enough, and a bound on the table.
    INSERT INTO journal_sightings
    SELECT event_id, p_lived_ms
      FROM (SELECT max(event_first + event_count) AS event_id FROM journal_last) AS next
     WHERE event_id > (SELECT COALESCE(max(event_id), 0) FROM journal_sightings)
       AND p_lived_ms - (SELECT COALESCE(max(seen_ms), p_lived_ms - p_keep_ms)
                           FROM journal_sightings) >= p_keep_ms / 16;
    SELECT max(event_id) INTO v_event FROM journal_sightings
     WHERE seen_ms <= p_lived_ms - p_keep_ms;
    IF v_event IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM journal_sightings WHERE event_id < v_event;
    RETURN journal_trim(v_event, 1000, p_rows);
END
$$;
