-- `ubscore transaction show` finds the deliveries of one transaction.
CREATE INDEX webhook_deliveries_of_transaction ON webhook_deliveries (req_id) WHERE kind = 2;
