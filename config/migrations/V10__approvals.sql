-- ubscore, version 10: what operators hold back.

-- New transfers that are refused: of a direction, of an asset, or of one direction of one asset. 0 stands for all.
CREATE TABLE pauses_tb (
    direction SMALLINT NOT NULL CHECK (direction IN (0, 1, 2)),      -- 1 Funding->Spot, 2 Spot->Funding
    asset_id  INTEGER NOT NULL CHECK (asset_id >= 0),
    at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor     TEXT NOT NULL,
    reason    TEXT NOT NULL,
    PRIMARY KEY (direction, asset_id),
    CHECK (direction <> 0 OR asset_id <> 0)
);

-- What one operator has asked for and another one is to approve. A decision stands.
CREATE TABLE approvals_tb (
    approval_id    VARCHAR(26) PRIMARY KEY,
    action         TEXT NOT NULL CHECK (action IN ('resolve', 'resume', 'external')),
    subject        TEXT NOT NULL,                     -- the transfer, the halt or the idem_key
    request        TEXT NOT NULL,                     -- what will be carried out, JSON
    state          SMALLINT NOT NULL DEFAULT 1 CHECK (state IN (1, 2, 3, 4)),  -- 1 pending, 2 approved, 3 rejected, 4 expired
    maker          BIGINT NOT NULL CHECK (maker > 0),
    reason         TEXT NOT NULL,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    expires_at     TIMESTAMPTZ NOT NULL,
    decider        BIGINT CHECK ((decider IS NULL) = (state IN (1, 4))),
    decider_reason TEXT CHECK ((decider_reason IS NULL) = (decider IS NULL)),
    decided_at     TIMESTAMPTZ CHECK ((decided_at IS NULL) = (decider IS NULL)),
    carried_out_at TIMESTAMPTZ CHECK (carried_out_at IS NULL OR state = 2),
    CHECK (state <> 2 OR decider <> maker)            -- two people
);

-- Who asks for the same again is given the same, as long as nobody has decided it.
CREATE UNIQUE INDEX approvals_pending ON approvals_tb (maker, action, subject) WHERE state = 1;
CREATE INDEX approvals_by_time ON approvals_tb (created_at);

CREATE FUNCTION approvals_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'approval % cannot be changed like that', OLD.approval_id USING ERRCODE = 'UB003';
END
$$;

CREATE TRIGGER approvals_guard BEFORE UPDATE ON approvals_tb FOR EACH ROW
    WHEN (OLD.state <> 1 AND (OLD.state, OLD.decider) IS DISTINCT FROM (NEW.state, NEW.decider))
    EXECUTE FUNCTION approvals_guard();
CREATE TRIGGER approvals_identity_guard
    BEFORE UPDATE OF approval_id, action, subject, request, maker, reason, created_at, expires_at ON approvals_tb
    FOR EACH ROW EXECUTE FUNCTION approvals_guard();

-- The last halt, among everything that operators have done.
CREATE INDEX admin_audit_halts ON admin_audit (id) WHERE action = 'halt';
