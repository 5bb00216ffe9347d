\set user random(1, 1000)
\set source random(1, 2)
SELECT whole.transfer(:user, :source::smallint, 1);
