-- Guards: triggers that refuse a change that would break a rule, with UB003. They hold against
-- every role, and against a mistake in the program.

-- A transfer only goes to states that follow its own, and a decision of Funding stands.
CREATE FUNCTION transfers_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.funding_at IS NOT NULL
       AND ((OLD.funding_at, OLD.funding_code, OLD.funding_after)
            IS DISTINCT FROM (NEW.funding_at, NEW.funding_code, NEW.funding_after)
            OR OLD.refund_at IS NOT NULL
               AND (OLD.refund_at, OLD.refund_after)
                   IS DISTINCT FROM (NEW.refund_at, NEW.refund_after)) THEN
        RAISE EXCEPTION 'a decision of Funding about transfer % stands', ulid_text(OLD.req_id)
            USING ERRCODE = 'UB003';
    END IF;
    IF OLD.state <> NEW.state AND NOT transfer_state_admits(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'transfer % cannot go from state % to %',
            ulid_text(OLD.req_id), OLD.state, NEW.state
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

-- In the function and not in a WHEN: PostgreSQL parses a WHEN again for every statement.
CREATE TRIGGER transfers_guard
    BEFORE UPDATE OF state, funding_at, funding_code, funding_after, refund_at, refund_after
    ON transfers_tb FOR EACH ROW EXECUTE FUNCTION transfers_guard();

-- A journal is written once: a row never changes.
CREATE FUNCTION row_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row of % is written once and stands', TG_TABLE_NAME USING ERRCODE = 'UB003';
END
$$;

CREATE TRIGGER external_operations_guard BEFORE UPDATE OR DELETE ON external_operations
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- The identity of a transfer stands from its accept on. Only its progress changes.
CREATE TRIGGER transfers_identity_guard
    BEFORE UPDATE OF order_number, req_id, cid, user_id, asset_id, amount, direction
    ON transfers_tb FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER transfers_delete_guard BEFORE DELETE ON transfers_tb
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- A hold ends once, and its end stands. A row is deleted only below the watermark, and never one
-- that has moved money: a statement shows it.
CREATE FUNCTION funding_holds_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.state = 10 OR OLD.taken > 0 OR OLD.brought > 0
           OR OLD.deposited > 0 OR OLD.withdrawn > 0
           OR OLD.order_number >= (SELECT watermark FROM engine_state) THEN
            RAISE EXCEPTION 'hold % cannot be deleted', OLD.hold_key USING ERRCODE = 'UB003';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.state <> 10 THEN
        RAISE EXCEPTION 'hold % has ended, and stands', OLD.hold_key USING ERRCODE = 'UB003';
    END IF;
    IF (OLD.hold_key, OLD.order_number, OLD.user_id, OLD.asset_id, OLD.purpose, OLD.special,
        OLD.reason, OLD.created_at)
       IS DISTINCT FROM
       (NEW.hold_key, NEW.order_number, NEW.user_id, NEW.asset_id, NEW.purpose, NEW.special,
        NEW.reason, NEW.created_at)
       OR NEW.round < OLD.round THEN
        RAISE EXCEPTION 'hold % cannot be changed like that', OLD.hold_key
            USING ERRCODE = 'UB003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER funding_holds_guard BEFORE UPDATE OR DELETE ON funding_holds
    FOR EACH ROW EXECUTE FUNCTION funding_holds_guard();

-- A freeze is never deleted: behind its end it is 0.
CREATE TRIGGER freezes_delete_guard BEFORE DELETE ON freezes_tb
    FOR EACH ROW EXECUTE FUNCTION row_guard();

-- Number, symbol and precision of an asset give every recorded amount its meaning. A changed
-- precision would change all of them.
CREATE FUNCTION assets_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'assets_tb: asset_id, symbol and precision never change, and no row is deleted'
        USING ERRCODE = 'UB003',
              HINT = 'Suspend the asset: '
                     'ubscore asset set SYMBOL --status SUSPENDED --reason TEXT';
END
$$;

CREATE TRIGGER assets_identity_guard BEFORE UPDATE ON assets_tb
    FOR EACH ROW WHEN ((OLD.asset_id, OLD.symbol, OLD.precision)
                       IS DISTINCT FROM (NEW.asset_id, NEW.symbol, NEW.precision))
    EXECUTE FUNCTION assets_guard();
CREATE TRIGGER assets_delete_guard BEFORE DELETE ON assets_tb
    FOR EACH ROW EXECUTE FUNCTION assets_guard();
CREATE TRIGGER assets_truncate_guard BEFORE TRUNCATE ON assets_tb
    FOR EACH STATEMENT EXECUTE FUNCTION assets_guard();

-- A decision on an approval stands, and a request never changes.
CREATE FUNCTION approvals_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'approval % cannot be changed like that', OLD.approval_id
        USING ERRCODE = 'UB003';
END
$$;

CREATE TRIGGER approvals_guard BEFORE UPDATE ON approvals_tb
    FOR EACH ROW WHEN (OLD.state <> 1
                       AND (OLD.state, OLD.decider) IS DISTINCT FROM (NEW.state, NEW.decider))
    EXECUTE FUNCTION approvals_guard();
CREATE TRIGGER approvals_identity_guard
    BEFORE UPDATE OF approval_id, action, subject, request, maker, reason, created_at, expires_at
    ON approvals_tb FOR EACH ROW EXECUTE FUNCTION approvals_guard();
