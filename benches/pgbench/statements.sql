-- Either way at random; the rows of a user always in one order, so that no two wait for each other.
\set user random(1, 1000)
\set moved 2 * random(0, 1) - 1
BEGIN;
UPDATE whole.balances SET units = units + :moved WHERE user_id = :user AND side = 1 AND units + :moved >= 0;
UPDATE whole.balances SET units = units - :moved WHERE user_id = :user AND side = 2 AND units - :moved >= 0;
INSERT INTO whole.transfers (user_id, moved) VALUES (:user, :moved);
COMMIT;
