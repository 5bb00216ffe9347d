-- Behind a restore PostgreSQL may lack recharges that their channels know. A restore and a repair
-- write this down; `ubscore recharge recover` ends the need, and the time stays.

ALTER TABLE engine_state
    ADD COLUMN recover_needed BOOLEAN NOT NULL DEFAULT FALSE,  -- no refund is sent meanwhile
    ADD COLUMN restored_at    TIMESTAMPTZ;                     -- the last one; NULL: never
