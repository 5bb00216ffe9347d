-- Movements that belong to no payment: promotions, fees of channels, money that reaches the bank.
-- Further kinds: 13 bonus, 14 bonus back, 15 funded, 16 fees, 17 bank.

ALTER TABLE recharge_movements
    ALTER COLUMN payment_id DROP NOT NULL,
    DROP CONSTRAINT recharge_movements_kind_check,
    ADD CONSTRAINT recharge_movements_kind_check CHECK (kind BETWEEN 1 AND 17) NOT VALID,
    ADD CONSTRAINT recharge_movements_of_payment_check
        CHECK (payment_id IS NOT NULL OR kind BETWEEN 13 AND 17) NOT VALID;
