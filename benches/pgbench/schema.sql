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
    source  SMALLINT NOT NULL,
    units   BIGINT NOT NULL,
    at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO whole.balances SELECT id, side, 1000000 FROM generate_series(1, 1000) AS id, generate_series(1, 2) AS side;
CREATE FUNCTION whole.transfer(p_user BIGINT, p_source SMALLINT, p_units BIGINT) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    UPDATE whole.balances SET units = units - p_units WHERE user_id = p_user AND side = p_source AND units >= p_units;
    IF NOT FOUND THEN
        RETURN FALSE;
    END IF;
    UPDATE whole.balances SET units = units + p_units WHERE user_id = p_user AND side = 3 - p_source;
    INSERT INTO whole.transfers (user_id, source, units) VALUES (p_user, p_source, p_units);
    RETURN TRUE;
END
$$;
