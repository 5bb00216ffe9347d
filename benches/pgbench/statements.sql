\set user random(1, 1000)
\set source random(1, 2)
BEGIN;
UPDATE whole.balances SET units = units - 1 WHERE user_id = :user AND side = :source AND units >= 1;
UPDATE whole.balances SET units = units + 1 WHERE user_id = :user AND side = 3 - :source;
INSERT INTO whole.transfers (user_id, source, units) VALUES (:user, :source, 1);
COMMIT;
