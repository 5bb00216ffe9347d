-- A recharge in PostgreSQL alone: the six writes of a verified payment, as tables with the keys that they need.
CREATE SCHEMA paid;
CREATE TABLE paid.orders (
    id      BIGINT PRIMARY KEY,
    user_id BIGINT NOT NULL,
    state   SMALLINT NOT NULL,
    version BIGINT NOT NULL,
    paid_at TIMESTAMPTZ
) WITH (fillfactor = 60);
CREATE TABLE paid.payments (
    channel  TEXT NOT NULL,
    trade_no TEXT NOT NULL,
    order_id BIGINT NOT NULL,
    amount   BIGINT NOT NULL,
    at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (channel, trade_no)
);
CREATE TABLE paid.ledger (
    key      TEXT PRIMARY KEY,
    user_id  BIGINT NOT NULL,
    amount   BIGINT NOT NULL,
    at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE paid.movements (
    key    TEXT PRIMARY KEY,
    debit  TEXT NOT NULL,
    credit TEXT NOT NULL,
    amount BIGINT NOT NULL,
    at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE paid.balances (user_id BIGINT PRIMARY KEY, units BIGINT NOT NULL) WITH (fillfactor = 80);
CREATE TABLE paid.outbox (id BIGSERIAL PRIMARY KEY, order_id BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp());
INSERT INTO paid.orders SELECT id, 1 + id % 1000, 10, 1, NULL FROM generate_series(0, 199999) AS id;
INSERT INTO paid.balances SELECT id, 0 FROM generate_series(1, 1000) AS id;
CREATE FUNCTION paid.credit(p_order BIGINT, p_user BIGINT, p_trade TEXT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO paid.payments (channel, trade_no, order_id, amount) VALUES ('card', p_trade, p_order, 10000);
    UPDATE paid.orders SET state = 40, version = version + 1, paid_at = clock_timestamp() WHERE id = p_order;
    INSERT INTO paid.ledger (key, user_id, amount) VALUES ('recharge/' || p_trade, p_user, 10000);
    INSERT INTO paid.movements (key, debit, credit, amount)
        VALUES ('recharge/' || p_trade, 'card/clearing', 'user/' || p_user, 10000);
    INSERT INTO paid.outbox (order_id) VALUES (p_order);
    UPDATE paid.balances SET units = units + 10000 WHERE user_id = p_user;
    RETURN FOUND;
END
$$;
