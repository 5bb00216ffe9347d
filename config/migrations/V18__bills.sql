-- Bills of payment channels: one for each day, as its channel counts days. The till fetches and
-- compares them (src/till/bills.rs); the functions stand in src/postgres/sql/bills.sql.

-- One row for each day of a channel. It is good once `run` is set: the lines of that run count.
CREATE TABLE channel_bills (
    tries      BIGINT NOT NULL DEFAULT 0 CHECK (tries >= 0),
    run        BIGINT,                           -- the try that has brought a whole bill
    lines      BIGINT NOT NULL DEFAULT 0,
    paid       BIGINT NOT NULL DEFAULT 0,        -- sums in the channel's minor units
    returned   BIGINT NOT NULL DEFAULT 0,
    fees       BIGINT NOT NULL DEFAULT 0,        -- of lines of ours; below 0: given back
    foreign_fees BIGINT NOT NULL DEFAULT 0,      -- of the other lines: not booked
    foreign_lines BIGINT NOT NULL DEFAULT 0,     -- of other users of the merchant account
    next_at    TIMESTAMPTZ,                      -- when the till looks at it; NULL: never
    fetched_at TIMESTAMPTZ,
    compared_at TIMESTAMPTZ,                     -- when the last whole comparison began
    fees_units NUMERIC NOT NULL DEFAULT 0,       -- as they are booked, smallest units
    day        DATE NOT NULL,
    looks      INTEGER NOT NULL DEFAULT 0,       -- comparisons since it was fetched
    asset_id   INTEGER,                          -- of the booked fees
    state      SMALLINT NOT NULL DEFAULT 0
               CHECK (state IN (0, 10, 40)),     -- 0 wanted, 10 compared, 40 clean
    again      BOOLEAN NOT NULL DEFAULT FALSE,   -- it is fetched anew; until then its state stands
    purged     BOOLEAN NOT NULL DEFAULT FALSE,   -- its lines of payments are removed
    channel    VARCHAR(16) NOT NULL,
    what       TEXT,                             -- why the last try brought no bill
    PRIMARY KEY (channel, day),
    CONSTRAINT channel_bills_good_check CHECK (state = 0 OR run IS NOT NULL)
);

CREATE INDEX channel_bills_due ON channel_bills (next_at) WHERE next_at IS NOT NULL;

-- The lines that a try has read. They count if it is the `run` of its bill.
CREATE TABLE channel_bill_lines (
    run               BIGINT NOT NULL,
    place             BIGINT NOT NULL,
    minor_units       BIGINT NOT NULL CHECK (minor_units >= 0),
    fee_parts         BIGINT NOT NULL DEFAULT 0, -- thousandths of a minor unit
    at                TIMESTAMPTZ NOT NULL,
    day               DATE NOT NULL,
    kind              SMALLINT NOT NULL          -- 1 paid, 2 returned, 3 taken,
                      CHECK (kind BETWEEN 1 AND 6), -- 4 given back, 5 other, 6 undone
    marked            BOOLEAN NOT NULL,          -- the merchant number is one of ours
    channel           VARCHAR(16) NOT NULL,
    currency          TEXT NOT NULL,
    fee_currency      TEXT NOT NULL DEFAULT '',
    merchant_no       TEXT NOT NULL,
    trade_no          TEXT NOT NULL,
    number            TEXT,                      -- of a return: ours, or else the channel's
    channel_return_no TEXT,
    return_no         TEXT,
    PRIMARY KEY (channel, day, run, place)
);

CREATE INDEX channel_bill_lines_of_returns ON channel_bill_lines (channel, trade_no)
    WHERE kind IN (2, 3, 4);

-- A difference between a bill and the rows here. It is open until the data do not show it.
CREATE TABLE bill_findings (
    finding_id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    there             BIGINT,                    -- in the bill, the channel's minor units
    here              BIGINT,                    -- as it is recorded
    found_at          TIMESTAMPTZ NOT NULL,
    updated_at        TIMESTAMPTZ NOT NULL,
    day               DATE NOT NULL,
    kind              SMALLINT NOT NULL          -- 1 missing here, 2 missing there, 3 amount
                      CHECK (kind BETWEEN 1 AND 6), -- differs; of returns: 4 here, 5 there;
                                                 -- 6 undone
    line_kind         SMALLINT,                  -- as in channel_bill_lines
    state             SMALLINT NOT NULL
                      CHECK (state IN (10, 40, -40)), -- 10 open, 40 done, -40 dismissed
    channel           VARCHAR(16) NOT NULL,
    currency          TEXT NOT NULL,
    reference         TEXT NOT NULL,             -- the trade_no, or the number of the return
    trade_no          TEXT NOT NULL,
    merchant_no       TEXT NOT NULL,
    return_no         TEXT,
    channel_return_no TEXT,
    actor             TEXT,                      -- of a dismissal
    reason            TEXT,
    what              TEXT,                      -- the channel's word about it
    UNIQUE (channel, day, kind, reference)
);

CREATE INDEX bill_findings_open ON bill_findings (channel, day) WHERE state = 10;
