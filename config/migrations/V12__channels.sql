-- Payment channels: a name belongs to one merchant for ever, since payments are keyed by it.

CREATE TABLE channels_tb (
    name       VARCHAR(16) PRIMARY KEY,
    merchant   TEXT NOT NULL,                    -- the account, as the configuration names it
    paused     BOOLEAN NOT NULL DEFAULT FALSE,   -- no new orders; everything else goes on
    created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
