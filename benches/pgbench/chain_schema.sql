-- A request with its nonce in PostgreSQL alone: one row, with the keys that it needs.
CREATE SCHEMA numbered;
CREATE TABLE numbered.requests (
    id         BIGSERIAL PRIMARY KEY,
    signer     TEXT NOT NULL,
    request_id TEXT NOT NULL,
    payload    JSONB NOT NULL,
    nonce      BIGINT NOT NULL,
    state      SMALLINT NOT NULL,
    at         TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (signer, request_id)
);
CREATE SEQUENCE numbered.nonces;
