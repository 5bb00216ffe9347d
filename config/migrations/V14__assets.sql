-- ubscore, version 14: an asset stays the asset that it is, and a database of development carries a mark.

-- Number, symbol and precision give every recorded amount its meaning. A changed precision would change all of them.
CREATE FUNCTION assets_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'assets_tb: asset_id, symbol and precision never change, and no row is deleted'
        USING ERRCODE = 'UB003', HINT = 'Suspend the asset: ubscore asset set SYMBOL --status SUSPENDED --reason TEXT';
END
$$;

CREATE TRIGGER assets_identity_guard BEFORE UPDATE ON assets_tb FOR EACH ROW
    WHEN ((OLD.asset_id, OLD.symbol, OLD.precision) IS DISTINCT FROM (NEW.asset_id, NEW.symbol, NEW.precision))
    EXECUTE FUNCTION assets_guard();
CREATE TRIGGER assets_delete_guard BEFORE DELETE ON assets_tb FOR EACH ROW EXECUTE FUNCTION assets_guard();
CREATE TRIGGER assets_truncate_guard BEFORE TRUNCATE ON assets_tb FOR EACH STATEMENT EXECUTE FUNCTION assets_guard();

-- Both limits are whole numbers of smallest units below 2^64, as the service reads them. NOT VALID: a row that was there
-- before may break the rule, and must not stop the migration; the service suspends its asset and names it.
ALTER TABLE assets_tb ADD CONSTRAINT assets_units_check CHECK (
    min_transfer_amount = round(min_transfer_amount, precision)
    AND max_transfer_amount = round(max_transfer_amount, precision)
    AND max_transfer_amount * power(10::numeric, precision) < 18446744073709551616
) NOT VALID;

-- Set by the start with --dev that used the database first. Only there does it give money, and `ubscore load` too.
ALTER TABLE engine_state ADD COLUMN development BOOLEAN NOT NULL DEFAULT FALSE;
