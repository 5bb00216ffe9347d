-- Both balances of each user in PostgreSQL, and a row for each transfer: what a service without a second system would have.
CREATE SCHEMA whole;
CREATE TABLE whole.balances (
    user_id BIGINT NOT NULL,
    side    SMALLINT NOT NULL,
    units   BIGINT NOT NULL,
    PRIMARY KEY (user_id, side)
) WITH (fillfactor = 80);
CREATE TABLE whole.transfers (
    id      BIGSERIAL PRIMARY KEY,
    user_id BIGINT NOT NULL,
    moved   BIGINT NOT NULL,
    at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO whole.balances SELECT id, side, 1000000 FROM generate_series(1, 1000) AS id, generate_series(1, 2) AS side;
CREATE FUNCTION whole.transfer(p_user BIGINT, p_moved BIGINT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    UPDATE whole.balances SET units = units + p_moved WHERE user_id = p_user AND side = 1 AND units + p_moved >= 0;
    UPDATE whole.balances SET units = units - p_moved WHERE user_id = p_user AND side = 2 AND units - p_moved >= 0;
    INSERT INTO whole.transfers (user_id, moved) VALUES (p_user, p_moved);
    RETURN FOUND;
END
$$;
