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
