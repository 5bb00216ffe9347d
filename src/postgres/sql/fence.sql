-- The fence: only the latest incarnation writes, and the flights of a shard commit in their order.
--
-- A flight is fenced by the key of its row in journal_tb. A write without a flight compares the
-- incarnation.

-- Refuses a superseded process with UB001. Until its transaction ends, no incarnation can begin.
CREATE FUNCTION fence_incarnation(p_incarnation BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM engine_state WHERE incarnation = p_incarnation FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'incarnation % has been superseded', p_incarnation USING ERRCODE = 'UB001';
    END IF;
END
$$;

-- The end of each flight: the rows that it found, and those that it must have found. A difference
-- aborts all of it. `_held`: rows that the process holds; `_absent`: rows that it holds as absent.
CREATE FUNCTION flight_guard(
    p_predecessors BIGINT, p_lowest BIGINT, p_transfers BIGINT, p_transfers_held BIGINT,
    p_accounts BIGINT, p_accounts_held BIGINT, p_accounts_absent BIGINT,
    p_balances BIGINT, p_balances_held BIGINT, p_balances_absent BIGINT,
    p_holds BIGINT DEFAULT 0, p_holds_held BIGINT DEFAULT 0,
    p_freezes BIGINT DEFAULT 0, p_freezes_held BIGINT DEFAULT 0)
RETURNS TEXT LANGUAGE plpgsql AS $$
BEGIN
    IF p_predecessors <> 1 THEN
        RAISE EXCEPTION 'the flight before this one is not the last row of the shard'
            USING ERRCODE = 'UB005';
    END IF;
    -- UBSCore may have forgotten outcomes below the watermark. The workers promise that no new
    -- number is below it.
    IF p_lowest < (SELECT watermark FROM engine_state) THEN
        RAISE EXCEPTION 'order number % is below the watermark', p_lowest
            USING ERRCODE = 'UB003';
    END IF;
    IF p_transfers <> p_transfers_held THEN
        RAISE EXCEPTION '% of % transfers are where the process holds them',
            p_transfers, p_transfers_held USING ERRCODE = 'UB006';
    END IF;
    IF p_accounts <> p_accounts_held OR p_accounts_absent <> 0 THEN
        RAISE EXCEPTION '% of % accounts are as the process holds them; it does not know %',
            p_accounts, p_accounts_held, p_accounts_absent USING ERRCODE = 'UB007';
    END IF;
    IF p_balances <> p_balances_held OR p_balances_absent <> 0 THEN
        RAISE EXCEPTION '% of % balances are as the process holds them; it does not know %',
            p_balances, p_balances_held, p_balances_absent USING ERRCODE = 'UB008';
    END IF;
    IF p_holds <> p_holds_held THEN
        RAISE EXCEPTION '% of % holds are as the process holds them', p_holds, p_holds_held
            USING ERRCODE = 'UB009';
    END IF;
    IF p_freezes <> p_freezes_held THEN
        RAISE EXCEPTION '% of % freezes are as the process holds them', p_freezes, p_freezes_held
            USING ERRCODE = 'UB013';
    END IF;
    RETURN 'written';
END
$$;

-- Takes every shard for an incarnation: each one that the journal knows, and the first p_shards. A
-- flight of an earlier incarnation commits before this, or never: it waits for the lock, and then
-- finds its number in use. Each row has the last event of all shards, and the lowest order number
-- of all transfers under way, because a user may have another shard from here on. A shard without a
-- worker has none under way: the last of p_shards, which is Funding's own, and those above.
-- p_shards: 0 stands for a tool, which does not know the workers.
CREATE FUNCTION journal_fence(p_incarnation BIGINT, p_shards INTEGER) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE journal_tb IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO journal_tb (shard, flight, incarnation, attempt, at, durable, open_from,
                            event_first, bytes, event_count, entries)
    SELECT shard, COALESCE(l.flight, 0) + 1, p_incarnation, 0, clock_timestamp(),
           COALESCE(l.durable, 0),
           CASE WHEN p_shards > 0 AND shard >= p_shards - 1 THEN 9223372036854775807
                ELSE COALESCE((SELECT min(open_from) FROM journal_last), 0) END,
           COALESCE((SELECT max(event_first + event_count) FROM journal_last), 1),
           COALESCE(journal_behind(l.bytes, l.entries), 0), 0, ''
      FROM (SELECT shard FROM journal_last
            UNION SELECT * FROM generate_series(0, p_shards - 1)) AS s (shard)
      LEFT JOIN journal_last l USING (shard);
END
$$;
