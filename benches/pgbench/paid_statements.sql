-- The balance comes last, so that its row is locked for the shortest time. Trades are numbered at random: two that meet end the run.
\set order random(0, 199999)
\set user 1 + :order % 1000
\set trade random(1, 9000000000000000000)
BEGIN;
INSERT INTO paid.payments (channel, trade_no, order_id, amount) VALUES ('card', :trade::bigint::text, :order, 10000);
UPDATE paid.orders SET state = 40, version = version + 1, paid_at = clock_timestamp() WHERE id = :order;
INSERT INTO paid.ledger (key, user_id, amount) VALUES ('recharge/' || :trade::bigint::text, :user, 10000);
INSERT INTO paid.movements (key, debit, credit, amount) VALUES ('recharge/' || :trade::bigint::text, 'card/clearing', 'user/' || :user::bigint::text, 10000);
INSERT INTO paid.outbox (order_id) VALUES (:order);
UPDATE paid.balances SET units = units + 10000 WHERE user_id = :user;
COMMIT;
