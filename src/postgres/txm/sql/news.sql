-- News for the nodes: each hears the channel `txm`, and looks for work of the signer in the payload
-- if it owns it. A notification makes commits wait for each other, so that only rare writes notify
-- in their own transaction. The node that stores a row without a nonce notifies behind its commit.

-- Tells a change of commands or suspensions.
CREATE FUNCTION txm.news() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('txm', COALESCE(NEW.signer, OLD.signer));
    RETURN NULL;
END
$$;

CREATE TRIGGER tx_commands_news AFTER INSERT OR UPDATE OF state ON txm.tx_commands
    FOR EACH ROW WHEN (NEW.state = 1) EXECUTE FUNCTION txm.news();
CREATE TRIGGER signer_suspensions_news AFTER INSERT OR UPDATE OR DELETE ON txm.signer_suspensions
    FOR EACH ROW EXECUTE FUNCTION txm.news();
