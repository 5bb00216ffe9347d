-- The schema of a fresh database by its catalog. To renew it:
-- UBSCORE_SCHEMA=1 cargo test --features crash --test main -- committed

CREATE TABLE audit (
    audit_id bigint NOT NULL DEFAULT nextval('audit_audit_id_seq'::regclass),
    at timestamp with time zone NOT NULL,
    tx_id uuid,
    signer text,
    actor text NOT NULL,
    what text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT audit_pkey PRIMARY KEY (audit_id)
);
CREATE TABLE functions (
    one boolean NOT NULL,
    hash text NOT NULL,
    CONSTRAINT functions_one_check CHECK (one),
    CONSTRAINT functions_pkey PRIMARY KEY (one)
);
CREATE TABLE managed_tx (
    nonce bigint,
    gas_limit bigint,
    version bigint NOT NULL,
    fencing_token bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    deadline timestamp with time zone,
    first_submit_at timestamp with time zone,
    last_submit_at timestamp with time zone,
    next_resubmit_at timestamp with time zone,
    confirmed_at timestamp with time zone,
    final_at timestamp with time zone,
    receipt_number bigint,
    fork integer NOT NULL DEFAULT 0,
    resends integer NOT NULL DEFAULT 0,
    event_seq integer NOT NULL DEFAULT 0,
    tx_id uuid NOT NULL,
    state smallint NOT NULL,
    sub_state smallint,
    code smallint,
    wish smallint NOT NULL DEFAULT 0,
    signer text NOT NULL,
    request_id text NOT NULL,
    business_key text,
    fingerprint text NOT NULL,
    refusal text,
    tx_hash bytea,
    receipt_hash bytea,
    cost_wei numeric(78,0),
    payload jsonb NOT NULL,
    receipt jsonb,
    CONSTRAINT managed_tx_business_key_check CHECK (((octet_length(business_key) >= 1) AND (octet_length(business_key) <= 128))),
    CONSTRAINT managed_tx_business_key_key UNIQUE (business_key),
    CONSTRAINT managed_tx_check CHECK (((code IS NULL) = (state <> '-10'::integer))),
    CONSTRAINT managed_tx_check1 CHECK (((nonce IS NOT NULL) OR (state = ANY (ARRAY[0, '-10'::integer])))),
    CONSTRAINT managed_tx_check2 CHECK (((nonce IS NULL) OR (gas_limit IS NOT NULL))),
    CONSTRAINT managed_tx_check3 CHECK (((nonce IS NULL) OR (state <> 0))),
    CONSTRAINT managed_tx_check4 CHECK (((receipt IS NULL) = (receipt_number IS NULL))),
    CONSTRAINT managed_tx_check5 CHECK (((receipt IS NULL) = (receipt_hash IS NULL))),
    CONSTRAINT managed_tx_check6 CHECK (((final_at IS NULL) OR (state = ANY (ARRAY[40, '-10'::integer])))),
    CONSTRAINT managed_tx_code_check CHECK (((code >= 1) AND (code <= 7))),
    CONSTRAINT managed_tx_gas_limit_check CHECK ((gas_limit > 0)),
    CONSTRAINT managed_tx_nonce_check CHECK ((nonce >= 0)),
    CONSTRAINT managed_tx_pkey PRIMARY KEY (tx_id),
    CONSTRAINT managed_tx_request_id_check CHECK (((octet_length(request_id) >= 1) AND (octet_length(request_id) <= 128))),
    CONSTRAINT managed_tx_signer_request_id_key UNIQUE (signer, request_id),
    CONSTRAINT managed_tx_state_check CHECK ((state = ANY (ARRAY[0, 10, 20, 30, 40, '-10'::integer]))),
    CONSTRAINT managed_tx_sub_state_check CHECK (((sub_state >= 1) AND (sub_state <= 13))),
    CONSTRAINT managed_tx_wish_check CHECK ((wish = ANY (ARRAY[0, 1, 2])))
) WITH (fillfactor=60);
CREATE TABLE migrations (
    version integer NOT NULL,
    name character varying(255),
    applied_on character varying(255),
    checksum character varying(255),
    CONSTRAINT migrations_pkey PRIMARY KEY (version)
);
CREATE TABLE nodes (
    incarnation bigint NOT NULL DEFAULT nextval('nodes_incarnation_seq'::regclass),
    node_id text NOT NULL,
    url text NOT NULL,
    signers text[] NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    CONSTRAINT nodes_pkey PRIMARY KEY (incarnation)
) WITH (fillfactor=70);
CREATE TABLE nonce_jumps (
    signer text NOT NULL,
    first_nonce bigint NOT NULL,
    before_nonce bigint NOT NULL,
    fencing_token bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    CONSTRAINT nonce_jumps_check CHECK ((before_nonce > first_nonce)),
    CONSTRAINT nonce_jumps_pkey PRIMARY KEY (signer, first_nonce),
    CONSTRAINT nonce_jumps_signer_fkey FOREIGN KEY (signer) REFERENCES signers(signer)
);
CREATE TABLE outflow_minutes (
    signer text NOT NULL,
    asset text NOT NULL,
    minute timestamp with time zone NOT NULL,
    units numeric(78,0) NOT NULL,
    CONSTRAINT outflow_minutes_pkey PRIMARY KEY (signer, asset, minute)
) WITH (fillfactor=50);
CREATE TABLE settings (
    one boolean NOT NULL,
    chain_id bigint NOT NULL,
    genesis_hash bytea NOT NULL,
    lease_duration interval NOT NULL,
    lease_skew interval NOT NULL,
    system_identifier bigint NOT NULL,
    timeline bigint NOT NULL,
    epoch bigint NOT NULL,
    CONSTRAINT settings_chain_id_check CHECK ((chain_id > 0)),
    CONSTRAINT settings_check CHECK (((lease_skew * (4)::double precision) < lease_duration)),
    CONSTRAINT settings_genesis_hash_check CHECK ((octet_length(genesis_hash) = 32)),
    CONSTRAINT settings_one_check CHECK (one),
    CONSTRAINT settings_pkey PRIMARY KEY (one)
);
CREATE TABLE signer_lease (
    signer text NOT NULL,
    owner_node text NOT NULL,
    owner_incarnation bigint NOT NULL,
    fencing_token bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT signer_lease_fencing_token_check CHECK ((fencing_token > 0)),
    CONSTRAINT signer_lease_pkey PRIMARY KEY (signer),
    CONSTRAINT signer_lease_signer_fkey FOREIGN KEY (signer) REFERENCES signers(signer)
) WITH (fillfactor=50);
CREATE TABLE signer_nonce_cursor (
    signer text NOT NULL,
    next_nonce bigint NOT NULL,
    fencing_token bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT signer_nonce_cursor_next_nonce_check CHECK ((next_nonce >= 0)),
    CONSTRAINT signer_nonce_cursor_pkey PRIMARY KEY (signer),
    CONSTRAINT signer_nonce_cursor_signer_fkey FOREIGN KEY (signer) REFERENCES signers(signer)
) WITH (fillfactor=50);
CREATE TABLE signer_suspensions (
    signer text NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL,
    about text NOT NULL,
    at timestamp with time zone NOT NULL,
    seen_nonce bigint,
    again_at timestamp with time zone,
    CONSTRAINT signer_suspensions_pkey PRIMARY KEY (signer, reason),
    CONSTRAINT signer_suspensions_reason_check CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 128))),
    CONSTRAINT signer_suspensions_seen_nonce_check CHECK ((seen_nonce > 0)),
    CONSTRAINT signer_suspensions_signer_fkey FOREIGN KEY (signer) REFERENCES signers(signer)
);
CREATE TABLE signers (
    signer text NOT NULL,
    kind text NOT NULL,
    added_at timestamp with time zone NOT NULL,
    added_by text NOT NULL,
    CONSTRAINT signers_kind_check CHECK ((kind = ANY (ARRAY['keystore'::text, 'remote'::text]))),
    CONSTRAINT signers_pkey PRIMARY KEY (signer),
    CONSTRAINT signers_signer_check CHECK ((signer ~ '^0x[0-9a-f]{40}$'::text))
);
CREATE TABLE tx_attempts (
    tx_id uuid NOT NULL,
    attempt integer NOT NULL,
    kind smallint NOT NULL,
    was_in_pool boolean NOT NULL DEFAULT false,
    gas bigint NOT NULL,
    fencing_token bigint NOT NULL,
    signed_at timestamp with time zone NOT NULL,
    answered_at timestamp with time zone,
    max_fee numeric(39,0) NOT NULL,
    max_tip numeric(39,0) NOT NULL,
    tx_hash bytea NOT NULL,
    class text,
    raw bytea NOT NULL,
    answers jsonb NOT NULL DEFAULT '{}'::jsonb,
    CONSTRAINT tx_attempts_attempt_check CHECK ((attempt > 0)),
    CONSTRAINT tx_attempts_gas_check CHECK ((gas > 0)),
    CONSTRAINT tx_attempts_kind_check CHECK ((kind = ANY (ARRAY[1, 2, 3, 4]))),
    CONSTRAINT tx_attempts_pkey PRIMARY KEY (tx_id, attempt),
    CONSTRAINT tx_attempts_tx_hash_check CHECK ((octet_length(tx_hash) = 32)),
    CONSTRAINT tx_attempts_tx_hash_key UNIQUE (tx_hash)
) WITH (fillfactor=60);
CREATE TABLE tx_commands (
    command_id bigint NOT NULL DEFAULT nextval('tx_commands_command_id_seq'::regclass),
    tx_id uuid,
    at timestamp with time zone NOT NULL,
    done_at timestamp with time zone,
    state smallint NOT NULL,
    signer text NOT NULL,
    what text NOT NULL,
    actor text NOT NULL,
    seconded_by text,
    reason text NOT NULL,
    refusal text,
    body jsonb NOT NULL,
    CONSTRAINT tx_commands_check CHECK (((done_at IS NULL) = (state = ANY (ARRAY[0, 1])))),
    CONSTRAINT tx_commands_check1 CHECK ((seconded_by <> actor)),
    CONSTRAINT tx_commands_check2 CHECK (((refusal IS NULL) = (state <> 3))),
    CONSTRAINT tx_commands_pkey PRIMARY KEY (command_id),
    CONSTRAINT tx_commands_signer_fkey FOREIGN KEY (signer) REFERENCES signers(signer),
    CONSTRAINT tx_commands_state_check CHECK ((state = ANY (ARRAY[0, 1, 2, 3])))
);
CREATE TABLE tx_confirmations (
    tx_id uuid NOT NULL,
    fork integer NOT NULL,
    block_number bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    block_hash bytea NOT NULL,
    parent_hash bytea NOT NULL,
    CONSTRAINT tx_confirmations_block_hash_check CHECK ((octet_length(block_hash) = 32)),
    CONSTRAINT tx_confirmations_parent_hash_check CHECK ((octet_length(parent_hash) = 32)),
    CONSTRAINT tx_confirmations_pkey PRIMARY KEY (tx_id, fork, block_number)
);
CREATE TABLE tx_events (
    epoch bigint NOT NULL,
    xid bigint NOT NULL,
    event_id bigint NOT NULL DEFAULT nextval('tx_events_event_id_seq'::regclass),
    at timestamp with time zone NOT NULL,
    seq integer NOT NULL,
    new_fork boolean NOT NULL,
    tx_id uuid NOT NULL,
    kind text NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT tx_events_kind_check CHECK ((kind = ANY (ARRAY['state'::text, 'confirmations'::text]))),
    CONSTRAINT tx_events_pkey PRIMARY KEY (epoch, xid, event_id)
);
CREATE TABLE tx_history (
    tx_id uuid NOT NULL,
    version bigint NOT NULL,
    token bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    attempts integer NOT NULL,
    from_state smallint,
    state smallint NOT NULL,
    sub_state smallint,
    code smallint,
    node text NOT NULL,
    CONSTRAINT tx_history_pkey PRIMARY KEY (tx_id, version)
);

CREATE INDEX managed_tx_by_signer ON txm.managed_tx USING btree (signer, tx_id);
CREATE INDEX managed_tx_deadline ON txm.managed_tx USING btree (signer, deadline) WHERE ((nonce IS NULL) AND (final_at IS NULL) AND (deadline IS NOT NULL));
CREATE UNIQUE INDEX managed_tx_nonce ON txm.managed_tx USING btree (signer, nonce, ((NOT (code IS DISTINCT FROM 6))));
CREATE INDEX managed_tx_open ON txm.managed_tx USING btree (signer, nonce) WHERE (final_at IS NULL);
CREATE INDEX managed_tx_taken ON txm.managed_tx USING btree (signer, nonce) WHERE (code = 6);
CREATE INDEX managed_tx_unnumbered ON txm.managed_tx USING btree (signer, tx_id) WHERE ((nonce IS NULL) AND (final_at IS NULL));
CREATE INDEX signer_lease_owner ON txm.signer_lease USING btree (owner_incarnation, signer);
CREATE INDEX signer_lease_owner_node ON txm.signer_lease USING btree (owner_node);
CREATE INDEX tx_commands_open ON txm.tx_commands USING btree (signer, command_id) WHERE (state = 1);

CREATE SEQUENCE audit_audit_id_seq AS bigint INCREMENT BY 1 START WITH 1 CACHE 1 OWNED BY audit.audit_id;
CREATE SEQUENCE nodes_incarnation_seq AS bigint INCREMENT BY 1 START WITH 1 CACHE 1 OWNED BY nodes.incarnation;
CREATE SEQUENCE tx_commands_command_id_seq AS bigint INCREMENT BY 1 START WITH 1 CACHE 1 OWNED BY tx_commands.command_id;
CREATE SEQUENCE tx_events_event_id_seq AS bigint INCREMENT BY 1 START WITH 1 CACHE 1 OWNED BY tx_events.event_id;

-- FUNCTION create(p_signer text, p_me bigint, p_token bigint, p_floor bigint, p_requests jsonb, p_whole boolean DEFAULT true) RETURNS TABLE(outcome text, fields text[], tx text, id text, nonce bigint) LANGUAGE plpgsql VOLATILE
-- FUNCTION acquire(p_signer text, p_me bigint) RETURNS TABLE(token bigint, node text, url text) LANGUAGE plpgsql VOLATILE
-- FUNCTION add_signer(p_signer text, p_kind text, p_cursor bigint, p_actor text, p_reason text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION adopted(c tx_commands, p_actor text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION alive(p_expires_at timestamp with time zone) RETURNS boolean LANGUAGE sql VOLATILE
-- FUNCTION arrived(p_signers text[], p_known uuid[]) RETURNS TABLE(kind text, signer text, body text) LANGUAGE plpgsql VOLATILE SET plan_cache_mode=force_custom_plan
-- FUNCTION begin(p_node text, p_url text, p_signers text[]) RETURNS bigint LANGUAGE sql VOLATILE
-- FUNCTION begun(p_ids uuid[], p_node text, p_token bigint) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION bind(p_chain bigint, p_genesis text, p_duration_ms bigint, p_skew_ms bigint) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION book(p_signer text, p_me bigint, p_token bigint) RETURNS TABLE(kind text, body text) LANGUAGE plpgsql VOLATILE
-- FUNCTION bytes(p_hex text) RETURNS bytea LANGUAGE sql STABLE
-- FUNCTION cancel_by_request(p_signer text, p_request text, p_actor text, p_reason text) RETURNS TABLE(is_new boolean, command bigint, details text) LANGUAGE plpgsql VOLATILE
-- FUNCTION clock() RETURNS timestamp with time zone LANGUAGE sql VOLATILE
-- FUNCTION command(p_signer text, p_tx uuid, p_what text, p_body jsonb, p_actor text, p_reason text) RETURNS bigint LANGUAGE plpgsql VOLATILE
-- FUNCTION command_json(c tx_commands) RETURNS jsonb LANGUAGE sql STABLE
-- FUNCTION commanded(p_signer text, p_me bigint, p_token bigint, p_command bigint, p_refused text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION compare_seen(p_seen jsonb) RETURNS TABLE(epoch bigint, known text[], difference text) LANGUAGE plpgsql VOLATILE
-- FUNCTION create_once(p_signer text, p_node text, p_token bigint, p_floor bigint, p_requests jsonb) RETURNS SETOF made LANGUAGE plpgsql VOLATILE SET plan_cache_mode=force_custom_plan
-- FUNCTION cursor_from(p_signer text, p_token bigint, p_floor bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
-- FUNCTION details_json(t managed_tx, p_history boolean) RETURNS jsonb LANGUAGE sql VOLATILE
-- FUNCTION differences(t managed_tx, p_fingerprint text, p_business text, p_payload jsonb) RETURNS text[] LANGUAGE sql STABLE
-- FUNCTION dropped(c tx_commands, p_requests text[], p_token bigint, p_actor text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION event_json(t managed_tx) RETURNS jsonb LANGUAGE sql STABLE
-- FUNCTION fail_name(p_code smallint) RETURNS text LANGUAGE sql STABLE
-- FUNCTION fence(p_signer text, p_me bigint, p_token bigint) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION fill(p_signer text, p_me bigint, p_token bigint, p_nonces bigint[], p_requests jsonb, p_asked boolean) RETURNS TABLE(outcome text, tx text) LANGUAGE plpgsql VOLATILE
-- FUNCTION hex(p_bytes bytea) RETURNS text LANGUAGE sql STABLE
-- FUNCTION imported(c tx_commands, p_nonce bigint, p_row jsonb, p_actor text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION is_jumped(p_signer text, p_nonce bigint) RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION is_same_server() RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION is_suspended(p_signer text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION is_told(was managed_tx, t managed_tx) RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION keep(p_signer text, p_me bigint, p_request jsonb, p_most bigint) RETURNS TABLE(outcome text, fields text[], tx text, is_elsewhere boolean) LANGUAGE plpgsql VOLATILE
-- FUNCTION keep_seen(p_seen jsonb) RETURNS void LANGUAGE sql VOLATILE
-- FUNCTION lifted(p_signer text, p_reason text, p_actor text, p_why text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION managed_tx_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION may_lack_rows(p_reason text) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION moment(p_ms bigint) RETURNS timestamp with time zone LANGUAGE sql STABLE
-- FUNCTION ms(p_at timestamp with time zone) RETURNS bigint LANGUAGE sql STABLE
-- FUNCTION ms_between(p_from timestamp with time zone, p_to timestamp with time zone) RETURNS bigint LANGUAGE sql STABLE
-- FUNCTION news() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION no_fill(p_request text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION number(p_signer text, p_me bigint, p_token bigint, p_floor bigint, p_ids uuid[], p_versions bigint[], p_gas bigint[]) RETURNS SETOF text LANGUAGE plpgsql VOLATILE
-- FUNCTION outflow_passes(p_signer text, p_payload jsonb, p_limits jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION passes(was managed_tx, t managed_tx) RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION release(p_signer text, p_me bigint, p_token bigint) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION renew(p_me bigint) RETURNS TABLE(signer text, token bigint) LANGUAGE plpgsql VOLATILE
-- FUNCTION requests(p_requests jsonb) RETURNS TABLE(place bigint, request_id text, business_key text, fingerprint text, gas bigint, deadline_ms bigint, payload jsonb) LANGUAGE sql STABLE
-- FUNCTION resume(p_signer text, p_reason text, p_actor text, p_why text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION row_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION same_server() RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION second(p_command bigint, p_actor text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION signer_lease_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION signer_nonce_cursor_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION state_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION state_name(p_state smallint) RETURNS text LANGUAGE sql STABLE
-- FUNCTION stepped(was managed_tx, p_step jsonb, p_token bigint, p_now timestamp with time zone) RETURNS managed_tx LANGUAGE plpgsql STABLE
-- FUNCTION store(p_was managed_tx[], p_rows managed_tx[], p_steps jsonb[], p_token bigint, p_node text, p_now timestamp with time zone) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION sub_name(p_sub smallint) RETURNS text LANGUAGE sql STABLE
-- FUNCTION suspend(p_signer text, p_me bigint, p_token bigint, p_reason text, p_about text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION suspend_all(p_about text) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION suspended(p_signer text, p_reason text, p_actor text, p_about text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION suspension(p_signer text, p_reason text, p_actor text, p_about text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION timeline() RETURNS bigint LANGUAGE sql STABLE
-- FUNCTION to_adopt(p_signer text) RETURNS TABLE(seen bigint, lost bigint[], filling bigint, waiting text[]) LANGUAGE sql STABLE
-- FUNCTION tx_attempts_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION tx_commands_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION tx_json(t managed_tx, p_raw boolean DEFAULT true) RETURNS jsonb LANGUAGE plpgsql VOLATILE
-- FUNCTION uuid7(p_at timestamp with time zone) RETURNS uuid LANGUAGE sql VOLATILE
-- FUNCTION wanting(p_me bigint, p_most integer) RETURNS TABLE(signers text[], live_nodes bigint, open_signers bigint, next_end_ms bigint, unowned bigint) LANGUAGE sql VOLATILE
-- FUNCTION write(p_signer text, p_me bigint, p_token bigint, p_steps jsonb, p_limits jsonb) RETURNS SETOF text LANGUAGE plpgsql VOLATILE

CREATE TRIGGER audit_guard BEFORE DELETE OR UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER managed_tx_delete_guard BEFORE DELETE ON managed_tx FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER managed_tx_guard BEFORE UPDATE ON managed_tx FOR EACH ROW EXECUTE FUNCTION managed_tx_guard();
CREATE TRIGGER nodes_delete_guard BEFORE DELETE ON nodes FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER nonce_jumps_guard BEFORE DELETE OR UPDATE ON nonce_jumps FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER signer_lease_delete_guard BEFORE DELETE ON signer_lease FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER signer_lease_guard BEFORE UPDATE ON signer_lease FOR EACH ROW EXECUTE FUNCTION signer_lease_guard();
CREATE TRIGGER signer_nonce_cursor_delete_guard BEFORE DELETE ON signer_nonce_cursor FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER signer_nonce_cursor_guard BEFORE UPDATE ON signer_nonce_cursor FOR EACH ROW EXECUTE FUNCTION signer_nonce_cursor_guard();
CREATE TRIGGER signer_suspensions_news AFTER INSERT OR DELETE OR UPDATE ON signer_suspensions FOR EACH ROW EXECUTE FUNCTION news();
CREATE TRIGGER tx_attempts_delete_guard BEFORE DELETE ON tx_attempts FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER tx_attempts_guard BEFORE UPDATE ON tx_attempts FOR EACH ROW EXECUTE FUNCTION tx_attempts_guard();
CREATE TRIGGER tx_commands_delete_guard BEFORE DELETE ON tx_commands FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER tx_commands_guard BEFORE UPDATE ON tx_commands FOR EACH ROW EXECUTE FUNCTION tx_commands_guard();
CREATE TRIGGER tx_commands_news AFTER INSERT OR UPDATE OF state ON tx_commands FOR EACH ROW WHEN (new.state = 1) EXECUTE FUNCTION news();
CREATE TRIGGER tx_confirmations_guard BEFORE DELETE OR UPDATE ON tx_confirmations FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER tx_events_guard BEFORE DELETE OR UPDATE ON tx_events FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER tx_history_guard BEFORE DELETE OR UPDATE ON tx_history FOR EACH ROW EXECUTE FUNCTION row_guard();
