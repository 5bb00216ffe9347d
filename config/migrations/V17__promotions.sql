-- Promotions: a bonus beside a recharge, out of money that operators have put in. The rules are in
-- src/recharge/promotion.rs; functions and guards stand in src/postgres/sql/promotions.sql.

CREATE TABLE promotions_tb (
    available    BIGINT NOT NULL DEFAULT 0 CHECK (available >= 0), -- neither reserved nor given
    min_amount   BIGINT NOT NULL CHECK (min_amount > 0),           -- of an order
    fixed        BIGINT CHECK (fixed > 0),       -- the bonus, or the next two
    bonus_max    BIGINT CHECK (bonus_max > 0),
    starts_at    TIMESTAMPTZ NOT NULL,
    ends_at      TIMESTAMPTZ NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    asset_id     INTEGER NOT NULL CHECK (asset_id > 0),
    basis_points INTEGER CHECK (basis_points BETWEEN 1 AND 1000000), -- of the amount of an order
    per_user_max INTEGER NOT NULL CHECK (per_user_max > 0),
    status       SMALLINT NOT NULL CHECK (status IN (1, 2)),       -- 1 active, 2 stopped
    name         VARCHAR(16) PRIMARY KEY CHECK (name ~ '^[a-z0-9-]+$'),
    CONSTRAINT promotions_times_check CHECK (starts_at < ends_at),
    CONSTRAINT promotions_bonus_check CHECK (
        (fixed IS NULL) = (basis_points IS NOT NULL) AND (fixed IS NULL) = (bonus_max IS NOT NULL))
);

-- The bonus of an order: 1 reserved, 2 returned to its promotion, 3 given to its user; NULL: the
-- promotion has set nothing apart. A flight passes whole rows, so a new column stands at the end.
-- The check needs no pass over the table: no row of before breaks it.
ALTER TABLE recharges_tb
    ADD COLUMN bonus_state SMALLINT,
    ADD CONSTRAINT recharges_bonus_check CHECK (
        bonus_state IS NULL
        OR bonus > 0 AND promotion IS NOT NULL
           AND CASE bonus_state WHEN 1 THEN TRUE
                                WHEN 2 THEN state IN (40, -10)
                                WHEN 3 THEN state IN (40, -10)
                                ELSE FALSE END) NOT VALID;

-- The uses of a promotion by its users, and the sum of its bonuses.
CREATE INDEX recharges_by_promotion ON recharges_tb (promotion, user_id)
    INCLUDE (bonus, bonus_state) WHERE promotion IS NOT NULL;
-- The money that was put into a promotion.
CREATE INDEX recharge_movements_funded ON recharge_movements (credit) INCLUDE (amount)
    WHERE kind = 15;

-- The step of the till for a row that is due: 1 create, 2 close, 3 query, 4 follow, 5 give the
-- bonus back, 0 nothing.
DROP INDEX recharges_due;
CREATE INDEX recharges_due ON recharges_tb (
    channel,
    (CASE WHEN bonus_state = 1 AND state IN (40, -10) THEN 5
          WHEN state = 40 THEN 4
          WHEN state = -10 OR held > 0 THEN 0
          WHEN closing IS NOT NULL THEN 2
          WHEN state = 0 THEN 1
          ELSE 3 END),
    next_at
) WHERE next_at IS NOT NULL;
