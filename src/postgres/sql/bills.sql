-- Bills of payment channels: the one comparison of a bill with the rows here.
--
-- Lines: 1 paid, 2 returned, 3 taken, 4 given back, 5 other, 6 undone. Findings: 1 missing here, 2
-- missing there, 3 amount differs, 4 return missing here, 5 return missing there, 6 undone.

-- The lines of the good bills of a channel, of the days around p_day.
CREATE FUNCTION bill_lines_near(p_channel TEXT, p_day DATE)
RETURNS SETOF channel_bill_lines LANGUAGE sql STABLE AS $$
    SELECT l.* FROM channel_bills b
      JOIN channel_bill_lines l ON (l.channel, l.day, l.run) = (b.channel, b.day, b.run)
     WHERE b.channel = p_channel AND b.day BETWEEN p_day - 1 AND p_day + 1
$$;

-- Whether a payment or return of p_day that stands in no bill is missing there: the bill of the
-- next day is good, and every bill near it has its lines.
CREATE FUNCTION bill_next_is_good(p_channel TEXT, p_day DATE) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(bool_and(NOT purged) AND bool_or(day = p_day + 1 AND run IS NOT NULL), FALSE)
      FROM channel_bills WHERE channel = p_channel AND day BETWEEN p_day - 1 AND p_day + 1
$$;

-- The differences between the bill of p_day, from p_from to p_to, and the rows here. `there` and
-- `here` are the channel's minor units.
--
-- A payment may stand in the bill of a day beside its own: the two clocks differ. A return is done
-- here some time behind its line, so its line may be of any earlier day. A channel may give one
-- number to a taking and to its end. An operator may book a taking by the number that the merchant
-- or the channel has given it. A payment that its channel had given back before it was seen has no
-- return.
CREATE FUNCTION bill_differences(
    p_channel TEXT, p_day DATE, p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS TABLE (kind SMALLINT, line_kind SMALLINT, reference TEXT, trade_no TEXT, merchant_no TEXT,
               return_no TEXT, channel_return_no TEXT, currency TEXT, there BIGINT, here BIGINT)
LANGUAGE sql STABLE AS $$
    (SELECT DISTINCT ON (l.trade_no) 1::smallint, l.kind, l.trade_no, l.trade_no, l.merchant_no,
            l.return_no, l.channel_return_no, l.currency, l.minor_units, NULL::bigint
       FROM bill_lines_near(p_channel, p_day) l
       LEFT JOIN channel_payments p ON (p.channel, p.trade_no) = (p_channel, l.trade_no)
      WHERE l.day = p_day AND l.marked AND l.kind < 5 AND l.trade_no <> ''
        AND p.payment_id IS NULL
      ORDER BY l.trade_no, l.kind)
    UNION ALL
    SELECT 2::smallint, NULL, p.trade_no, p.trade_no, p.merchant_no, NULL, NULL, p.currency, NULL,
           p.minor_units
      FROM channel_payments p
     -- It was seen behind its time: the index by time leaves older ones out.
     WHERE p.channel = p_channel AND p.updated_at >= p_from - INTERVAL '1 day'
       AND p.paid_at >= p_from AND p.paid_at < p_to AND p.disposition <> -40
       AND (SELECT bill_next_is_good(p_channel, p_day))
       AND NOT EXISTS (SELECT FROM bill_lines_near(p_channel, p_day) l
                        WHERE l.kind = 1 AND l.trade_no = p.trade_no)
    UNION ALL
    -- A line that comes twice is a difference too.
    SELECT 3::smallint, 1::smallint, p.trade_no, p.trade_no, p.merchant_no, NULL, NULL, l.currency,
           l.there, p.minor_units
      FROM (SELECT trade_no, min(currency) AS currency, max(currency) AS other,
                   sum(minor_units)::bigint AS there, min(merchant_no) AS merchant_no
              FROM bill_lines_near(p_channel, p_day)
             WHERE kind = 1 GROUP BY trade_no HAVING bool_or(day = p_day)) AS l
      JOIN channel_payments p ON (p.channel, p.trade_no) = (p_channel, l.trade_no)
     WHERE (l.there, l.currency, l.other, l.merchant_no)
           <> (p.minor_units, p.currency, p.currency, p.merchant_no)
    UNION ALL
    SELECT CASE WHEN r.here IS NULL AND l.times = 1 THEN 4 ELSE 3 END::smallint, l.kind,
           COALESCE(l.number, l.trade_no) || CASE l.kind WHEN 4 THEN ' given back' ELSE '' END,
           l.trade_no, p.merchant_no, l.return_no, l.channel_return_no, l.currency, l.there, r.here
      FROM (SELECT trade_no, kind, number, min(return_no) AS return_no,
                   min(channel_return_no) AS channel_return_no, count(*) AS times,
                   min(currency) AS currency, max(currency) AS other,
                   sum(minor_units)::bigint AS there
              FROM bill_lines_near(p_channel, p_day)
             WHERE kind IN (2, 3, 4)
             GROUP BY trade_no, kind, number HAVING bool_or(day = p_day)) AS l
      JOIN channel_payments p ON (p.channel, p.trade_no) = (p_channel, l.trade_no)
     -- Two rows here for one line are a difference too.
     CROSS JOIN LATERAL (
        SELECT sum(r.minor_units)::bigint AS here FROM recharge_returns r
         WHERE r.payment_id = p.payment_id AND r.state = 40 AND (r.kind = 3) = (l.kind = 4)
           AND CASE r.kind WHEN 1 THEN l.return_no = 'wrf_' || ulid_text(r.return_id)
               ELSE r.channel_return_no IN (l.return_no, l.channel_return_no) END) AS r
     WHERE (r.here, p.currency, p.currency) IS DISTINCT FROM (l.there, l.currency, l.other)
       AND (p.disposition <> -30
            OR EXISTS (SELECT FROM recharge_returns o WHERE o.payment_id = p.payment_id))
    UNION ALL
    SELECT 5::smallint, CASE r.kind WHEN 1 THEN 2 WHEN 2 THEN 3 ELSE 4 END::smallint,
           n.number || CASE r.kind WHEN 3 THEN ' given back' ELSE '' END,
           p.trade_no, p.merchant_no, CASE r.kind WHEN 1 THEN n.number END, r.channel_return_no,
           p.currency, NULL, r.minor_units
      FROM recharge_returns r JOIN channel_payments p USING (payment_id)
     CROSS JOIN LATERAL (
        SELECT CASE r.kind WHEN 1 THEN 'wrf_' || ulid_text(r.return_id)
                           ELSE r.channel_return_no END AS number) AS n
     WHERE p.channel = p_channel AND r.state = 40
       AND r.updated_at >= p_from AND r.updated_at < p_to
       AND (SELECT bill_next_is_good(p_channel, p_day))
       AND NOT EXISTS (SELECT FROM channel_bill_lines l
                         JOIN channel_bills b
                           ON (b.channel, b.day, b.run) = (l.channel, l.day, l.run)
                        WHERE (l.channel, l.trade_no) = (p_channel, p.trade_no)
                          AND l.kind IN (2, 3, 4) AND (l.kind = 4) = (r.kind = 3)
                          AND n.number IN (l.return_no, l.channel_return_no))
    UNION ALL
    -- A refund or a payment of ours that has failed behind its success.
    SELECT 6::smallint, l.kind, COALESCE(l.number, l.trade_no), l.trade_no, l.merchant_no,
           l.return_no, l.channel_return_no, l.currency, l.minor_units, NULL
      FROM bill_lines_near(p_channel, p_day) l
      LEFT JOIN channel_payments p ON (p.channel, p.trade_no) = (p_channel, l.trade_no)
     WHERE l.day = p_day AND l.kind = 6
       AND (l.marked OR l.return_no LIKE 'wrf\_%' OR p.payment_id IS NOT NULL)
$$;

-- A finding that is dismissed stays so, and its subject never changes.
CREATE FUNCTION bill_findings_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' OR OLD.state = -40
       OR (OLD.finding_id, OLD.channel, OLD.day, OLD.kind, OLD.reference, OLD.found_at)
          IS DISTINCT FROM
          (NEW.finding_id, NEW.channel, NEW.day, NEW.kind, NEW.reference, NEW.found_at)
       OR NEW.state = -40 AND (NEW.actor IS NULL OR NEW.reason IS NULL) THEN
        RAISE EXCEPTION 'finding % stands', OLD.finding_id USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER bill_findings_guard BEFORE UPDATE OR DELETE ON bill_findings
    FOR EACH ROW EXECUTE FUNCTION bill_findings_guard();
