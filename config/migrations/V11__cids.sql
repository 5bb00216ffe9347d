-- ubscore, version 11: a cid is found without its user.
--
-- An operator who is told a cid does not always know whose it is. The index that keeps a cid unique for its user begins with
-- the cid instead, so that it finds both: who names user and cid gets by either order to the one row, and what one user has
-- is found by transfers_by_user. An accept writes as many indexes as before.
--
-- What it takes of a large table: the new index is built while writes wait and reads go on, some 3 s for a million
-- transfers on a small machine; behind it two changes of the catalog lock everybody out for a moment. The old index goes only
-- when the new one is there, in one transaction. Whoever cannot wait so long builds it beforehand, while the earlier version
-- serves, by this statement with CONCURRENTLY; then it is found here.
CREATE UNIQUE INDEX IF NOT EXISTS transfers_tb_cid_user_id_key ON transfers_tb (cid, user_id);
ALTER TABLE transfers_tb
    ADD CONSTRAINT transfers_tb_cid_user_id_key UNIQUE USING INDEX transfers_tb_cid_user_id_key;

-- Built beforehand by somebody, it is taken for what its name says; a cid must not come to two transfers by that.
DO $$
BEGIN
    IF (SELECT pg_get_constraintdef(oid) FROM pg_constraint
         WHERE conname = 'transfers_tb_cid_user_id_key' AND conrelid = 'transfers_tb'::regclass)
       <> 'UNIQUE (cid, user_id)' THEN
        RAISE EXCEPTION 'the index transfers_tb_cid_user_id_key is not what it should be: drop it';
    END IF;
END
$$;

ALTER TABLE transfers_tb DROP CONSTRAINT transfers_tb_user_id_cid_key;
