\set order random(0, 199999)
\set user 1 + :order % 1000
\set trade random(1, 9000000000000000000)
SELECT paid.credit(:order, :user, :trade::bigint::text);
