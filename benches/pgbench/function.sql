\set user random(1, 1000)
\set moved 2 * random(0, 1) - 1
SELECT whole.transfer(:user, :moved);
