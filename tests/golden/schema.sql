-- The schema of a fresh database by its catalog. To renew it:
-- UBSCORE_SCHEMA=1 cargo test --features crash --test main -- committed

CREATE TABLE accounts_tb (
    user_id bigint NOT NULL,
    status smallint NOT NULL DEFAULT 1,
    CONSTRAINT accounts_tb_pkey PRIMARY KEY (user_id),
    CONSTRAINT accounts_tb_status_check CHECK ((status = ANY (ARRAY[1, 2, 3]))),
    CONSTRAINT accounts_tb_user_id_check CHECK ((user_id > 0))
);
CREATE TABLE admin_audit (
    id bigint NOT NULL DEFAULT nextval('admin_audit_id_seq'::regclass),
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT admin_audit_pkey PRIMARY KEY (id)
);
CREATE TABLE approvals_tb (
    approval_id character varying(26) NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    request text NOT NULL,
    state smallint NOT NULL DEFAULT 1,
    maker bigint NOT NULL,
    reason text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamp with time zone NOT NULL,
    decider bigint,
    decider_reason text,
    decided_at timestamp with time zone,
    carried_out_at timestamp with time zone,
    CONSTRAINT approvals_tb_action_check CHECK ((action = ANY (ARRAY['resolve'::text, 'resume'::text, 'external'::text, 'hold'::text, 'transaction'::text]))),
    CONSTRAINT approvals_tb_check CHECK (((decider IS NULL) = (state = ANY (ARRAY[1, 4])))),
    CONSTRAINT approvals_tb_check1 CHECK (((decider_reason IS NULL) = (decider IS NULL))),
    CONSTRAINT approvals_tb_check2 CHECK (((decided_at IS NULL) = (decider IS NULL))),
    CONSTRAINT approvals_tb_check3 CHECK (((carried_out_at IS NULL) OR (state = 2))),
    CONSTRAINT approvals_tb_check4 CHECK (((state <> 2) OR (decider <> maker))),
    CONSTRAINT approvals_tb_maker_check CHECK ((maker > 0)),
    CONSTRAINT approvals_tb_pkey PRIMARY KEY (approval_id),
    CONSTRAINT approvals_tb_state_check CHECK ((state = ANY (ARRAY[1, 2, 3, 4])))
);
CREATE TABLE assets (
    asset_id integer,
    symbol character varying(16),
    "precision" smallint,
    status smallint,
    internal_transfer_enabled boolean,
    min_transfer_amount numeric,
    max_transfer_amount numeric
);
CREATE TABLE assets_tb (
    asset_id integer NOT NULL,
    symbol character varying(16) NOT NULL,
    "precision" smallint NOT NULL,
    status smallint NOT NULL DEFAULT 1,
    internal_transfer_enabled boolean NOT NULL DEFAULT true,
    min_transfer_amount bigint NOT NULL,
    max_transfer_amount bigint NOT NULL,
    CONSTRAINT assets_tb_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT assets_tb_check CHECK ((max_transfer_amount >= min_transfer_amount)),
    CONSTRAINT assets_tb_min_transfer_amount_check CHECK ((min_transfer_amount > 0)),
    CONSTRAINT assets_tb_pkey PRIMARY KEY (asset_id),
    CONSTRAINT assets_tb_precision_check CHECK ((("precision" >= 0) AND ("precision" <= 8))),
    CONSTRAINT assets_tb_status_check CHECK ((status = ANY (ARRAY[1, 2]))),
    CONSTRAINT assets_tb_symbol_check CHECK (((octet_length((symbol)::text) >= 1) AND (octet_length((symbol)::text) <= 16))),
    CONSTRAINT assets_tb_symbol_key UNIQUE (symbol)
);
CREATE TABLE audit_folded (
    shard integer NOT NULL,
    flight bigint NOT NULL,
    CONSTRAINT audit_folded_pkey PRIMARY KEY (shard)
) WITH (fillfactor=50);
CREATE TABLE audit_state (
    singleton boolean NOT NULL DEFAULT true,
    log_sequence bigint NOT NULL DEFAULT 0,
    incarnation bigint NOT NULL DEFAULT 0,
    CONSTRAINT audit_state_pkey PRIMARY KEY (singleton),
    CONSTRAINT audit_state_singleton_check CHECK (singleton)
);
CREATE TABLE audit_totals (
    user_id bigint NOT NULL,
    asset_id integer NOT NULL,
    journal numeric(38,0) NOT NULL,
    external numeric(38,0) NOT NULL,
    CONSTRAINT audit_totals_pkey PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor=80);
CREATE TABLE balances (
    user_id bigint,
    asset_id integer,
    asset character varying(16),
    available numeric,
    frozen numeric,
    version bigint,
    special boolean
);
CREATE TABLE balances_tb (
    user_id bigint NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    asset_id integer NOT NULL,
    available numeric(38,0) NOT NULL,
    frozen numeric(38,0) NOT NULL DEFAULT 0,
    special boolean NOT NULL DEFAULT false,
    CONSTRAINT balances_special_check CHECK ((special OR (available >= (0)::numeric))),
    CONSTRAINT balances_tb_frozen_check CHECK ((frozen >= (0)::numeric)),
    CONSTRAINT balances_tb_pkey PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor=80);
CREATE TABLE bill_findings (
    finding_id bigint NOT NULL,
    there bigint,
    here bigint,
    found_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    day date NOT NULL,
    kind smallint NOT NULL,
    line_kind smallint,
    state smallint NOT NULL,
    channel character varying(16) NOT NULL,
    currency text NOT NULL,
    reference text NOT NULL,
    trade_no text NOT NULL,
    merchant_no text NOT NULL,
    return_no text,
    channel_return_no text,
    actor text,
    reason text,
    what text,
    CONSTRAINT bill_findings_channel_day_kind_reference_key UNIQUE (channel, day, kind, reference),
    CONSTRAINT bill_findings_kind_check CHECK (((kind >= 1) AND (kind <= 5))),
    CONSTRAINT bill_findings_pkey PRIMARY KEY (finding_id),
    CONSTRAINT bill_findings_state_check CHECK ((state = ANY (ARRAY[10, 40, '-40'::integer])))
);
CREATE TABLE branches (
    order_number bigint,
    owner text,
    tx_id character varying(64),
    branch_id text,
    participant text,
    round smallint,
    state text,
    last boolean,
    legs jsonb,
    payload json,
    code text,
    leg smallint,
    participant_code text,
    log_sequence bigint,
    updated_at timestamp with time zone
);
CREATE TABLE channel_bill_lines (
    run bigint NOT NULL,
    place bigint NOT NULL,
    minor_units bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    day date NOT NULL,
    kind smallint NOT NULL,
    marked boolean NOT NULL,
    channel character varying(16) NOT NULL,
    currency text NOT NULL,
    merchant_no text NOT NULL,
    trade_no text NOT NULL,
    number text,
    channel_return_no text,
    return_no text,
    CONSTRAINT channel_bill_lines_kind_check CHECK (((kind >= 1) AND (kind <= 5))),
    CONSTRAINT channel_bill_lines_minor_units_check CHECK ((minor_units >= 0)),
    CONSTRAINT channel_bill_lines_pkey PRIMARY KEY (channel, day, run, place)
);
CREATE TABLE channel_bills (
    tries bigint NOT NULL DEFAULT 0,
    run bigint,
    lines bigint NOT NULL DEFAULT 0,
    paid bigint NOT NULL DEFAULT 0,
    returned bigint NOT NULL DEFAULT 0,
    fees bigint NOT NULL DEFAULT 0,
    foreign_lines bigint NOT NULL DEFAULT 0,
    next_at timestamp with time zone,
    fetched_at timestamp with time zone,
    fees_units numeric NOT NULL DEFAULT 0,
    day date NOT NULL,
    looks integer NOT NULL DEFAULT 0,
    asset_id integer,
    state smallint NOT NULL DEFAULT 0,
    purged boolean NOT NULL DEFAULT false,
    channel character varying(16) NOT NULL,
    what text,
    CONSTRAINT channel_bills_good_check CHECK (((state = 0) OR (run IS NOT NULL))),
    CONSTRAINT channel_bills_pkey PRIMARY KEY (channel, day),
    CONSTRAINT channel_bills_state_check CHECK ((state = ANY (ARRAY[0, 10, 40]))),
    CONSTRAINT channel_bills_tries_check CHECK ((tries >= 0))
);
CREATE TABLE channel_notices (
    at timestamp with time zone NOT NULL,
    notice_id bigint NOT NULL,
    payment_id uuid NOT NULL,
    channel character varying(16) NOT NULL,
    trade_no character varying(128) NOT NULL,
    outcome text NOT NULL,
    head text[] NOT NULL,
    body bytea NOT NULL,
    CONSTRAINT channel_notices_pkey PRIMARY KEY (notice_id)
);
CREATE TABLE channel_payments (
    minor_units bigint NOT NULL,
    amount bigint,
    version bigint NOT NULL,
    user_id bigint,
    paid_at timestamp with time zone NOT NULL,
    at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    payment_id uuid NOT NULL,
    recharge_id uuid,
    asset_id integer NOT NULL,
    ordinal integer,
    disposition smallint NOT NULL,
    cause smallint,
    seen_by smallint NOT NULL,
    channel character varying(16) NOT NULL,
    currency text NOT NULL,
    merchant_no text NOT NULL,
    trade_no character varying(128) NOT NULL,
    CONSTRAINT channel_payments_amount_check CHECK ((amount > 0)),
    CONSTRAINT channel_payments_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT channel_payments_cause_check CHECK (((cause >= 1) AND (cause <= 11))),
    CONSTRAINT channel_payments_credited_check CHECK ((((disposition = 40) = (user_id IS NOT NULL)) AND ((disposition <> 40) OR (amount > 0)))),
    CONSTRAINT channel_payments_disposition_check CHECK ((disposition = ANY (ARRAY[10, 20, 40, '-30'::integer, '-40'::integer]))),
    CONSTRAINT channel_payments_held_check CHECK (((disposition <> 10) OR (cause IS NOT NULL))),
    CONSTRAINT channel_payments_matched_check CHECK (((recharge_id IS NULL) = (ordinal IS NULL))),
    CONSTRAINT channel_payments_minor_units_check CHECK ((minor_units > 0)),
    CONSTRAINT channel_payments_ordinal_check CHECK ((ordinal > 0)),
    CONSTRAINT channel_payments_payment_id_key UNIQUE (payment_id),
    CONSTRAINT channel_payments_pkey PRIMARY KEY (channel, trade_no),
    CONSTRAINT channel_payments_recharge_id_ordinal_key UNIQUE (recharge_id, ordinal),
    CONSTRAINT channel_payments_seen_by_check CHECK (((seen_by >= 1) AND (seen_by <= 4))),
    CONSTRAINT channel_payments_user_id_check CHECK ((user_id > 0)),
    CONSTRAINT channel_payments_version_check CHECK ((version > 0))
) WITH (fillfactor=80);
CREATE TABLE channels_tb (
    name character varying(16) NOT NULL,
    merchant text NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT channels_tb_pkey PRIMARY KEY (name)
);
CREATE TABLE engine_state (
    singleton boolean NOT NULL DEFAULT true,
    log_identity character varying(32),
    incarnation bigint NOT NULL DEFAULT 0,
    halted boolean NOT NULL DEFAULT false,
    halt_reason text,
    watermark bigint NOT NULL DEFAULT 0,
    development boolean NOT NULL DEFAULT false,
    posted boolean NOT NULL DEFAULT false,
    functions_hash character varying(16),
    recover_needed boolean NOT NULL DEFAULT false,
    restored_at timestamp with time zone,
    CONSTRAINT engine_state_pkey PRIMARY KEY (singleton),
    CONSTRAINT engine_state_singleton_check CHECK (singleton)
);
CREATE TABLE events_sightings (
    event_id bigint NOT NULL,
    seen_ms bigint NOT NULL,
    coarse boolean NOT NULL,
    CONSTRAINT events_sightings_pkey PRIMARY KEY (event_id)
);
CREATE TABLE external_operations (
    order_number bigint NOT NULL,
    user_id bigint NOT NULL,
    amount bigint NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    asset_id integer NOT NULL,
    op smallint NOT NULL,
    code smallint,
    balance_after numeric(38,0),
    idem_key character varying(64) NOT NULL,
    CONSTRAINT external_operations_amount_check CHECK ((amount > 0)),
    CONSTRAINT external_operations_op_check CHECK ((op = ANY (ARRAY[4, 5]))),
    CONSTRAINT external_operations_order_number_key UNIQUE (order_number),
    CONSTRAINT external_operations_pkey PRIMARY KEY (idem_key)
) WITH (fillfactor=80);
CREATE TABLE externals (
    order_number bigint,
    idem_key character varying(64),
    op smallint,
    outcome smallint,
    code text,
    user_id bigint,
    asset_id integer,
    asset character varying(16),
    amount numeric,
    balance_after numeric,
    at timestamp with time zone
);
CREATE TABLE freezes (
    user_id bigint,
    asset_id integer,
    asset character varying(16),
    purpose integer,
    amount numeric
);
CREATE TABLE freezes_tb (
    user_id bigint NOT NULL,
    asset_id integer NOT NULL,
    purpose integer NOT NULL,
    amount numeric(38,0) NOT NULL,
    CONSTRAINT freezes_tb_amount_check CHECK ((amount >= (0)::numeric)),
    CONSTRAINT freezes_tb_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT freezes_tb_pkey PRIMARY KEY (user_id, asset_id, purpose),
    CONSTRAINT freezes_tb_purpose_check CHECK (((purpose >= 1) AND (purpose <= 65535))),
    CONSTRAINT freezes_tb_user_id_check CHECK ((user_id > 0))
) WITH (fillfactor=80);
CREATE TABLE funding_holds (
    order_number bigint NOT NULL,
    user_id bigint NOT NULL,
    amount bigint NOT NULL,
    asked bigint NOT NULL,
    taken bigint NOT NULL,
    brought bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    asset_id integer NOT NULL,
    state smallint NOT NULL,
    round smallint NOT NULL,
    round_code smallint,
    reason smallint NOT NULL,
    pays boolean NOT NULL,
    paid boolean NOT NULL,
    settled_after numeric(38,0),
    hold_key character varying(96) NOT NULL,
    purpose integer NOT NULL DEFAULT 0,
    special boolean NOT NULL DEFAULT false,
    deposited bigint NOT NULL DEFAULT 0,
    withdrawn bigint NOT NULL DEFAULT 0,
    CONSTRAINT funding_holds_amount_check CHECK ((amount >= 0)),
    CONSTRAINT funding_holds_asked_check CHECK ((asked >= 0)),
    CONSTRAINT funding_holds_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT funding_holds_brought_check CHECK ((brought >= 0)),
    CONSTRAINT funding_holds_order_number_check CHECK ((order_number > 0)),
    CONSTRAINT funding_holds_outside_check CHECK (((deposited >= 0) AND (withdrawn >= 0) AND (((deposited = 0) AND (withdrawn = 0)) OR ((state = 40) AND (purpose = 0))))),
    CONSTRAINT funding_holds_pkey PRIMARY KEY (hold_key),
    CONSTRAINT funding_holds_purpose_check CHECK (((purpose >= 0) AND (purpose <= 65535))),
    CONSTRAINT funding_holds_reason_check CHECK ((reason > 0)),
    CONSTRAINT funding_holds_round_check CHECK (((round >= 0) AND (round <= 255))),
    CONSTRAINT funding_holds_settled_check CHECK (
CASE
    WHEN (state = 40) THEN ((settled_after IS NOT NULL) AND
    CASE
        WHEN special THEN true
        WHEN ((deposited = 0) AND (withdrawn = 0)) THEN (taken = amount)
        ELSE ((((taken)::numeric + (withdrawn)::numeric) >= (amount)::numeric) AND (((taken)::numeric + (withdrawn)::numeric) <= (((amount)::numeric + (brought)::numeric) + (deposited)::numeric)))
    END)
    ELSE ((taken = 0) AND (brought = 0) AND (settled_after IS NULL))
END),
    CONSTRAINT funding_holds_special_check CHECK (((NOT special) OR ((amount = 0) AND (purpose = 0)))),
    CONSTRAINT funding_holds_state_check CHECK ((state = ANY (ARRAY[10, 40, '-20'::integer]))),
    CONSTRAINT funding_holds_taken_check CHECK ((taken >= 0)),
    CONSTRAINT funding_holds_user_id_check CHECK ((user_id > 0))
) WITH (fillfactor=80);
CREATE TABLE holds (
    order_number bigint,
    hold_key character varying(96),
    user_id bigint,
    asset_id integer,
    asset character varying(16),
    amount numeric,
    state smallint,
    round smallint,
    round_code text,
    taken numeric,
    brought numeric,
    reason smallint,
    created_at timestamp with time zone,
    updated_at timestamp with time zone,
    purpose integer,
    deposited numeric,
    withdrawn numeric
);
CREATE TABLE journal_last (
    flight bigint,
    incarnation bigint,
    attempt bigint,
    at timestamp with time zone,
    durable bigint,
    open_from bigint,
    event_first bigint,
    bytes bigint,
    shard integer,
    event_count integer,
    entries bytea
);
CREATE TABLE journal_tb (
    flight bigint NOT NULL,
    incarnation bigint NOT NULL,
    attempt bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    durable bigint NOT NULL,
    open_from bigint NOT NULL,
    event_first bigint NOT NULL,
    bytes bigint NOT NULL,
    shard integer NOT NULL,
    event_count integer NOT NULL,
    entries bytea NOT NULL,
    CONSTRAINT journal_tb_pkey PRIMARY KEY (shard, flight)
) WITH (vacuum_truncate=off, autovacuum_freeze_min_age=0, autovacuum_freeze_table_age=0, autovacuum_multixact_freeze_min_age=0, autovacuum_multixact_freeze_table_age=0);
CREATE TABLE pauses_tb (
    direction smallint NOT NULL,
    asset_id integer NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT pauses_tb_asset_id_check CHECK ((asset_id >= 0)),
    CONSTRAINT pauses_tb_check CHECK (((direction <> 0) OR (asset_id <> 0))),
    CONSTRAINT pauses_tb_direction_check CHECK ((direction = ANY (ARRAY[0, 1, 2]))),
    CONSTRAINT pauses_tb_pkey PRIMARY KEY (direction, asset_id)
);
CREATE TABLE promotions_tb (
    available bigint NOT NULL DEFAULT 0,
    min_amount bigint NOT NULL,
    fixed bigint,
    bonus_max bigint,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    asset_id integer NOT NULL,
    basis_points integer,
    per_user_max integer NOT NULL,
    status smallint NOT NULL,
    name character varying(16) NOT NULL,
    CONSTRAINT promotions_bonus_check CHECK ((((fixed IS NULL) = (basis_points IS NOT NULL)) AND ((fixed IS NULL) = (bonus_max IS NOT NULL)))),
    CONSTRAINT promotions_tb_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT promotions_tb_available_check CHECK ((available >= 0)),
    CONSTRAINT promotions_tb_basis_points_check CHECK (((basis_points >= 1) AND (basis_points <= 1000000))),
    CONSTRAINT promotions_tb_bonus_max_check CHECK ((bonus_max > 0)),
    CONSTRAINT promotions_tb_fixed_check CHECK ((fixed > 0)),
    CONSTRAINT promotions_tb_min_amount_check CHECK ((min_amount > 0)),
    CONSTRAINT promotions_tb_name_check CHECK (((name)::text ~ '^[a-z0-9-]+$'::text)),
    CONSTRAINT promotions_tb_per_user_max_check CHECK ((per_user_max > 0)),
    CONSTRAINT promotions_tb_pkey PRIMARY KEY (name),
    CONSTRAINT promotions_tb_status_check CHECK ((status = ANY (ARRAY[1, 2]))),
    CONSTRAINT promotions_times_check CHECK ((starts_at < ends_at))
);
CREATE TABLE receivables_tb (
    user_id bigint NOT NULL,
    amount bigint NOT NULL,
    recovered bigint NOT NULL DEFAULT 0,
    written_off bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    return_id uuid NOT NULL,
    asset_id integer NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    payment_id uuid NOT NULL,
    acts receivable_act[] NOT NULL,
    CONSTRAINT receivables_ended_check CHECK (((recovered + written_off) <= amount)),
    CONSTRAINT receivables_tb_amount_check CHECK ((amount > 0)),
    CONSTRAINT receivables_tb_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT receivables_tb_pkey PRIMARY KEY (return_id),
    CONSTRAINT receivables_tb_recovered_check CHECK ((recovered >= 0)),
    CONSTRAINT receivables_tb_user_id_check CHECK ((user_id > 0)),
    CONSTRAINT receivables_tb_version_check CHECK ((version > 0)),
    CONSTRAINT receivables_tb_written_off_check CHECK ((written_off >= 0))
);
CREATE TABLE recharge_events (
    event_id bigint NOT NULL,
    user_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    recharge_id uuid,
    payment_id uuid,
    change smallint NOT NULL,
    state smallint,
    cause smallint,
    CONSTRAINT recharge_events_cause_check CHECK (((cause >= 1) AND (cause <= 11))),
    CONSTRAINT recharge_events_change_check CHECK (((change >= 1) AND (change <= 8))),
    CONSTRAINT recharge_events_pkey PRIMARY KEY (event_id),
    CONSTRAINT recharge_events_state_check CHECK ((state = ANY (ARRAY[0, 10, 40, '-10'::integer]))),
    CONSTRAINT recharge_events_subject_check CHECK (((recharge_id IS NOT NULL) OR (payment_id IS NOT NULL))),
    CONSTRAINT recharge_events_user_id_check CHECK ((user_id > 0))
);
CREATE TABLE recharge_movements (
    amount bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    recharge_id uuid,
    payment_id uuid,
    asset_id integer NOT NULL,
    kind smallint NOT NULL,
    debit text NOT NULL,
    credit text NOT NULL,
    movement_key character varying(64) NOT NULL,
    CONSTRAINT recharge_movements_amount_check CHECK ((amount > 0)),
    CONSTRAINT recharge_movements_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT recharge_movements_check CHECK ((credit <> debit)),
    CONSTRAINT recharge_movements_kind_check CHECK (((kind >= 1) AND (kind <= 17))),
    CONSTRAINT recharge_movements_of_payment_check CHECK (((payment_id IS NOT NULL) OR ((kind >= 13) AND (kind <= 17)))),
    CONSTRAINT recharge_movements_pkey PRIMARY KEY (movement_key)
);
CREATE TABLE recharge_returns (
    minor_units bigint NOT NULL,
    bonus bigint NOT NULL,
    version bigint NOT NULL,
    next_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    return_id uuid NOT NULL,
    payment_id uuid NOT NULL,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    idem_key character varying(64),
    channel_return_no character varying(128),
    attempts integer NOT NULL DEFAULT 0,
    code smallint,
    CONSTRAINT recharge_returns_attempts_check CHECK ((attempts >= 0)) NOT VALID,
    CONSTRAINT recharge_returns_bonus_check CHECK ((bonus >= 0)),
    CONSTRAINT recharge_returns_idem_key_key UNIQUE (idem_key),
    CONSTRAINT recharge_returns_kind_check CHECK ((kind = ANY (ARRAY[1, 2, 3]))),
    CONSTRAINT recharge_returns_minor_units_check CHECK ((minor_units > 0)),
    CONSTRAINT recharge_returns_of_channel_key UNIQUE (payment_id, kind, channel_return_no),
    CONSTRAINT recharge_returns_pkey PRIMARY KEY (return_id),
    CONSTRAINT recharge_returns_state_check CHECK ((state = ANY (ARRAY[0, 10, 20, 40, '-10'::integer]))),
    CONSTRAINT recharge_returns_version_check CHECK ((version > 0))
) WITH (fillfactor=80);
CREATE TABLE recharges_tb (
    user_id bigint NOT NULL,
    amount bigint NOT NULL,
    bonus bigint NOT NULL,
    minor_units bigint NOT NULL,
    version bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    paid_at timestamp with time zone,
    next_at timestamp with time zone,
    recharge_id uuid NOT NULL,
    asset_id integer NOT NULL,
    payments integer NOT NULL,
    held integer NOT NULL,
    attempts integer NOT NULL,
    state smallint NOT NULL,
    target smallint NOT NULL,
    closing smallint,
    code smallint,
    channel character varying(16) NOT NULL,
    promotion character varying(16),
    idem_key character varying(64) NOT NULL,
    fingerprint text NOT NULL,
    reference text,
    pay text,
    history recharge_step[] NOT NULL,
    follow_req_id uuid,
    follow_state smallint NOT NULL DEFAULT 0,
    follow_code smallint,
    bonus_state smallint,
    CONSTRAINT recharges_bonus_check CHECK (((bonus_state IS NULL) OR ((bonus > 0) AND (promotion IS NOT NULL) AND
CASE bonus_state
    WHEN 1 THEN true
    WHEN 2 THEN (state = ANY (ARRAY[40, '-10'::integer]))
    WHEN 3 THEN (state = ANY (ARRAY[40, '-10'::integer]))
    ELSE false
END))),
    CONSTRAINT recharges_follow_check CHECK (((follow_state = ANY (ARRAY[0, 40, '-10'::integer, '-20'::integer])) AND ((follow_state = 0) OR (state = 40)))) NOT VALID,
    CONSTRAINT recharges_paid_check CHECK (((paid_at IS NOT NULL) = (state = 40))),
    CONSTRAINT recharges_tb_amount_check CHECK ((amount > 0)),
    CONSTRAINT recharges_tb_asset_id_check CHECK ((asset_id > 0)),
    CONSTRAINT recharges_tb_attempts_check CHECK ((attempts > 0)),
    CONSTRAINT recharges_tb_bonus_check CHECK ((bonus >= 0)),
    CONSTRAINT recharges_tb_check CHECK (((held >= 0) AND (held <= payments))),
    CONSTRAINT recharges_tb_closing_check CHECK (((closing >= 1) AND (closing <= 4))),
    CONSTRAINT recharges_tb_minor_units_check CHECK ((minor_units > 0)),
    CONSTRAINT recharges_tb_payments_check CHECK ((payments >= 0)),
    CONSTRAINT recharges_tb_pkey PRIMARY KEY (recharge_id),
    CONSTRAINT recharges_tb_state_check CHECK ((state = ANY (ARRAY[0, 10, 40, '-10'::integer]))),
    CONSTRAINT recharges_tb_target_check CHECK ((target = ANY (ARRAY[1, 2]))),
    CONSTRAINT recharges_tb_user_id_check CHECK ((user_id > 0)),
    CONSTRAINT recharges_tb_user_id_idem_key_key UNIQUE (user_id, idem_key),
    CONSTRAINT recharges_tb_version_check CHECK ((version > 0))
) WITH (fillfactor=60);
CREATE TABLE transaction_branches (
    updated_at timestamp with time zone NOT NULL,
    log_sequence bigint,
    transaction_id uuid NOT NULL,
    round smallint NOT NULL,
    state smallint NOT NULL,
    code smallint,
    leg smallint,
    last boolean NOT NULL,
    participant text NOT NULL,
    participant_code text,
    fingerprint bytea NOT NULL,
    legs jsonb NOT NULL,
    payload json NOT NULL,
    followers text[] NOT NULL DEFAULT '{}'::text[],
    CONSTRAINT transaction_branches_fingerprint_check CHECK ((octet_length(fingerprint) = 16)),
    CONSTRAINT transaction_branches_leg_check CHECK ((leg >= 0)),
    CONSTRAINT transaction_branches_participant_check CHECK (((octet_length(participant) >= 1) AND (octet_length(participant) <= 32))),
    CONSTRAINT transaction_branches_pkey PRIMARY KEY (transaction_id, round, participant),
    CONSTRAINT transaction_branches_round_check CHECK (((round >= 1) AND (round <= 8))),
    CONSTRAINT transaction_branches_state_check CHECK ((state = ANY (ARRAY[10, 20, 40, '-10'::integer, '-20'::integer])))
) WITH (fillfactor=70);
CREATE TABLE transaction_events (
    event_id bigint NOT NULL,
    user_id bigint NOT NULL,
    transaction_id uuid NOT NULL,
    CONSTRAINT transaction_events_pkey PRIMARY KEY (event_id, user_id)
);
CREATE TABLE transaction_grants (
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    role_name name NOT NULL,
    owner text NOT NULL,
    CONSTRAINT transaction_grants_pkey PRIMARY KEY (role_name, owner)
);
CREATE TABLE transactions (
    order_number bigint,
    transaction_id text,
    owner text,
    tx_id character varying(64),
    state text,
    decide text,
    decided_by text,
    decided_at timestamp with time zone,
    expires_at timestamp with time zone,
    rounds smallint,
    code text,
    detail text,
    sealed boolean,
    created_at timestamp with time zone,
    updated_at timestamp with time zone,
    stores_ended_at timestamp with time zone,
    finished_at timestamp with time zone,
    history jsonb
);
CREATE TABLE transactions_tb (
    order_number bigint NOT NULL,
    incarnation bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    decided_at timestamp with time zone,
    finished_at timestamp with time zone,
    transaction_id uuid NOT NULL,
    state smallint NOT NULL,
    decide smallint NOT NULL,
    rounds smallint NOT NULL,
    code smallint,
    sealed boolean NOT NULL DEFAULT false,
    owner text NOT NULL,
    tx_id character varying(64) NOT NULL,
    decided_by text,
    detail text,
    history jsonb NOT NULL DEFAULT '[]'::jsonb,
    stores_ended_at timestamp with time zone,
    CONSTRAINT transactions_decided_check CHECK (((decided_at IS NULL) = (state = ANY (ARRAY[0, 20])))),
    CONSTRAINT transactions_stores_ended_check CHECK (((stores_ended_at IS NULL) OR (sealed AND (state <> ALL (ARRAY[0, 20]))))),
    CONSTRAINT transactions_tb_check CHECK (((finished_at IS NULL) = (state <> ALL (ARRAY[40, '-20'::integer])))),
    CONSTRAINT transactions_tb_check1 CHECK ((sealed OR (state <> ALL (ARRAY[40, '-10'::integer, '-20'::integer])))),
    CONSTRAINT transactions_tb_check2 CHECK (((decided_by IS NULL) = (decided_at IS NULL))),
    CONSTRAINT transactions_tb_decide_check CHECK ((decide = ANY (ARRAY[1, 2, 3]))),
    CONSTRAINT transactions_tb_order_number_key UNIQUE (order_number),
    CONSTRAINT transactions_tb_owner_tx_id_key UNIQUE (owner, tx_id),
    CONSTRAINT transactions_tb_pkey PRIMARY KEY (transaction_id),
    CONSTRAINT transactions_tb_rounds_check CHECK (((rounds >= 0) AND (rounds <= 8))),
    CONSTRAINT transactions_tb_state_check CHECK ((state = ANY (ARRAY[0, 20, 30, 40, '-10'::integer, '-20'::integer])))
) WITH (fillfactor=60);
CREATE TABLE transfer_decisions (
    order_number bigint,
    req_id uuid,
    op smallint,
    code smallint,
    user_id bigint,
    asset_id integer,
    amount bigint,
    balance_after numeric(38,0),
    at timestamp with time zone
);
CREATE TABLE transfer_events (
    user_id bigint,
    order_number bigint,
    event_id bigint,
    states smallint[],
    at timestamp with time zone
);
CREATE TABLE transfer_history (
    req_id text,
    states smallint[],
    at timestamp with time zone,
    attempt integer,
    actor text,
    reason text,
    event_id bigint
);
CREATE TABLE transfer_operations (
    req_id text,
    op smallint,
    outcome smallint,
    code text,
    user_id bigint,
    asset_id integer,
    amount numeric,
    balance_after numeric,
    at timestamp with time zone
);
CREATE TABLE transfers (
    order_number bigint,
    req_id text,
    cid character varying(64),
    user_id bigint,
    direction smallint,
    asset_id integer,
    asset character varying(16),
    amount numeric,
    state smallint,
    code text,
    error_message text,
    attempts integer,
    next_retry_at timestamp with time zone,
    log_sequence bigint,
    created_at timestamp with time zone,
    updated_at timestamp with time zone,
    funding_at timestamp with time zone,
    funding_code text,
    funding_after numeric,
    refund_at timestamp with time zone,
    refund_after numeric,
    history transfer_step[]
);
CREATE TABLE transfers_tb (
    order_number bigint NOT NULL,
    user_id bigint NOT NULL,
    amount bigint NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    req_id uuid NOT NULL,
    asset_id integer NOT NULL,
    direction smallint NOT NULL,
    cid character varying(64),
    state smallint NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    log_sequence bigint,
    next_retry_at timestamp with time zone,
    funding_at timestamp with time zone,
    refund_at timestamp with time zone,
    attempts integer NOT NULL DEFAULT 0,
    code smallint,
    funding_code smallint,
    error_message text,
    funding_after numeric(38,0),
    refund_after numeric(38,0),
    history transfer_step[] NOT NULL DEFAULT '{}'::transfer_step[],
    CONSTRAINT transfers_funding_check CHECK (((funding_at IS NOT NULL) OR (funding_code IS NULL))),
    CONSTRAINT transfers_refund_check CHECK (((refund_at IS NULL) OR ((direction = 1) AND (funding_at IS NOT NULL) AND (funding_code IS NULL)))),
    CONSTRAINT transfers_tb_amount_check CHECK ((amount > 0)),
    CONSTRAINT transfers_tb_cid_user_id_key UNIQUE (cid, user_id),
    CONSTRAINT transfers_tb_direction_check CHECK ((direction = ANY (ARRAY[1, 2]))),
    CONSTRAINT transfers_tb_pkey PRIMARY KEY (order_number),
    CONSTRAINT transfers_tb_req_id_key UNIQUE (req_id),
    CONSTRAINT transfers_tb_state_check CHECK ((state = ANY (ARRAY[0, 10, 20, 30, 40, '-10'::integer, '-20'::integer, '-30'::integer])))
) WITH (fillfactor=45);
CREATE TABLE watermark_clock (
    singleton boolean NOT NULL DEFAULT true,
    incarnation bigint NOT NULL DEFAULT 0,
    before_ms bigint NOT NULL DEFAULT 0,
    lived_ms bigint NOT NULL DEFAULT 0,
    CONSTRAINT watermark_clock_pkey PRIMARY KEY (singleton),
    CONSTRAINT watermark_clock_singleton_check CHECK (singleton)
);
CREATE TABLE watermark_open (
    singleton boolean NOT NULL DEFAULT true,
    open_from bigint NOT NULL DEFAULT 0,
    open_old bigint[] NOT NULL DEFAULT '{}'::bigint[],
    CONSTRAINT watermark_open_pkey PRIMARY KEY (singleton),
    CONSTRAINT watermark_open_singleton_check CHECK (singleton)
);
CREATE TABLE watermark_sightings (
    order_number bigint NOT NULL,
    seen_ms bigint NOT NULL,
    CONSTRAINT watermark_sightings_pkey PRIMARY KEY (order_number)
);
CREATE TABLE watermark_totals (
    user_id bigint NOT NULL,
    asset_id integer NOT NULL,
    funding_withdrawn numeric(38,0) NOT NULL DEFAULT 0,
    funding_deposited numeric(38,0) NOT NULL DEFAULT 0,
    funding_refunded numeric(38,0) NOT NULL DEFAULT 0,
    spot_withdrawn numeric(38,0) NOT NULL DEFAULT 0,
    spot_deposited numeric(38,0) NOT NULL DEFAULT 0,
    spot_refunded numeric(38,0) NOT NULL DEFAULT 0,
    external_deposited numeric(38,0) NOT NULL DEFAULT 0,
    external_withdrawn numeric(38,0) NOT NULL DEFAULT 0,
    transaction_taken numeric(38,0) NOT NULL DEFAULT 0,
    transaction_brought numeric(38,0) NOT NULL DEFAULT 0,
    transaction_deposited numeric(38,0) NOT NULL DEFAULT 0,
    transaction_withdrawn numeric(38,0) NOT NULL DEFAULT 0,
    CONSTRAINT watermark_totals_external_deposited_check CHECK ((external_deposited >= (0)::numeric)),
    CONSTRAINT watermark_totals_external_withdrawn_check CHECK ((external_withdrawn >= (0)::numeric)),
    CONSTRAINT watermark_totals_funding_deposited_check CHECK ((funding_deposited >= (0)::numeric)),
    CONSTRAINT watermark_totals_funding_refunded_check CHECK ((funding_refunded >= (0)::numeric)),
    CONSTRAINT watermark_totals_funding_withdrawn_check CHECK ((funding_withdrawn >= (0)::numeric)),
    CONSTRAINT watermark_totals_pkey PRIMARY KEY (user_id, asset_id),
    CONSTRAINT watermark_totals_spot_deposited_check CHECK ((spot_deposited >= (0)::numeric)),
    CONSTRAINT watermark_totals_spot_refunded_check CHECK ((spot_refunded >= (0)::numeric)),
    CONSTRAINT watermark_totals_spot_withdrawn_check CHECK ((spot_withdrawn >= (0)::numeric)),
    CONSTRAINT watermark_totals_transaction_brought_check CHECK ((transaction_brought >= (0)::numeric)),
    CONSTRAINT watermark_totals_transaction_deposited_check CHECK ((transaction_deposited >= (0)::numeric)),
    CONSTRAINT watermark_totals_transaction_taken_check CHECK ((transaction_taken >= (0)::numeric)),
    CONSTRAINT watermark_totals_transaction_withdrawn_check CHECK ((transaction_withdrawn >= (0)::numeric))
) WITH (fillfactor=80);
CREATE TABLE webhook_cursor (
    shard integer NOT NULL,
    flight bigint NOT NULL,
    CONSTRAINT webhook_cursor_pkey PRIMARY KEY (shard)
) WITH (fillfactor=50);
CREATE TABLE webhook_deliveries (
    event_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    req_id uuid NOT NULL,
    next_at timestamp with time zone,
    ended_at timestamp with time zone,
    attempts integer NOT NULL DEFAULT 0,
    status smallint NOT NULL DEFAULT 1,
    endpoint text NOT NULL,
    states smallint[] NOT NULL,
    last_error text,
    kind smallint NOT NULL DEFAULT 1,
    CONSTRAINT webhook_deliveries_check CHECK (((next_at IS NULL) OR (status = 1))),
    CONSTRAINT webhook_deliveries_check1 CHECK (((ended_at IS NULL) = (status = 1))),
    CONSTRAINT webhook_deliveries_kind_check CHECK ((kind = ANY (ARRAY[1, 2, 3]))),
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (endpoint, event_id),
    CONSTRAINT webhook_deliveries_status_check CHECK ((status = ANY (ARRAY[1, 2, 3])))
) WITH (fillfactor=50);

CREATE INDEX admin_audit_halts ON admin_audit USING btree (id) WHERE (action = 'halt'::text);
CREATE INDEX approvals_by_time ON approvals_tb USING btree (created_at);
CREATE UNIQUE INDEX approvals_pending ON approvals_tb USING btree (maker, action, subject) WHERE (state = 1);
CREATE INDEX balances_special ON balances_tb USING btree (user_id, asset_id) WHERE special;
CREATE INDEX bill_findings_open ON bill_findings USING btree (channel, day) WHERE (state = 10);
CREATE INDEX channel_bill_lines_of_returns ON channel_bill_lines USING btree (channel, number) WHERE (kind = ANY (ARRAY[2, 3, 4]));
CREATE INDEX channel_bills_due ON channel_bills USING btree (next_at) WHERE (next_at IS NOT NULL);
CREATE INDEX channel_notices_at ON channel_notices USING btree (at);
CREATE INDEX channel_notices_by_payment ON channel_notices USING btree (payment_id, notice_id);
CREATE INDEX channel_payments_held ON channel_payments USING btree (at) WHERE (disposition = ANY (ARRAY[10, 20]));
CREATE INDEX channel_payments_updated ON channel_payments USING btree (updated_at);
CREATE INDEX external_operations_of_recharges ON external_operations USING btree (at) WHERE (((idem_key)::text ~~ 'recharge/%'::text) OR ((idem_key)::text ~~ 'payment/%'::text) OR ((idem_key)::text ~~ 'return/%'::text));
CREATE INDEX funding_holds_by_number ON funding_holds USING btree (order_number);
CREATE INDEX funding_holds_empty ON funding_holds USING btree (order_number) WHERE ((state <> 10) AND (taken = 0) AND (brought = 0) AND (deposited = 0) AND (withdrawn = 0));
CREATE INDEX funding_holds_moved ON funding_holds USING btree (user_id) WHERE (state = 40);
CREATE INDEX funding_holds_of_purposes ON funding_holds USING btree (user_id, asset_id, purpose) WHERE (purpose <> 0);
CREATE INDEX funding_holds_open ON funding_holds USING btree (user_id, asset_id) WHERE (state = 10);
CREATE INDEX journal_of_tools ON journal_tb USING btree (event_first) WHERE (attempt >= '4611686018427387904'::bigint);
CREATE INDEX receivables_by_payment ON receivables_tb USING btree (payment_id);
CREATE INDEX receivables_by_time ON receivables_tb USING btree (at, return_id);
CREATE INDEX receivables_open ON receivables_tb USING btree (user_id) WHERE ((recovered + written_off) < amount);
CREATE INDEX receivables_updated ON receivables_tb USING btree (updated_at);
CREATE INDEX recharge_events_by_user ON recharge_events USING btree (user_id, event_id);
CREATE INDEX recharge_movements_at ON recharge_movements USING btree (at);
CREATE INDEX recharge_movements_by_payment ON recharge_movements USING btree (payment_id);
CREATE INDEX recharge_movements_funded ON recharge_movements USING btree (credit) INCLUDE (amount) WHERE (kind = 15);
CREATE INDEX recharge_returns_due ON recharge_returns USING btree (next_at) WHERE (next_at IS NOT NULL);
CREATE INDEX recharge_returns_updated ON recharge_returns USING btree (updated_at);
CREATE INDEX recharges_by_promotion ON recharges_tb USING btree (promotion, user_id) INCLUDE (bonus, bonus_state) WHERE (promotion IS NOT NULL);
CREATE INDEX recharges_by_reference ON recharges_tb USING btree (reference) WHERE (reference IS NOT NULL);
CREATE INDEX recharges_by_user ON recharges_tb USING btree (user_id, recharge_id);
CREATE INDEX recharges_due ON recharges_tb USING btree (channel, (
CASE
    WHEN ((bonus_state = 1) AND (state = ANY (ARRAY[40, '-10'::integer]))) THEN 5
    WHEN (state = 40) THEN 4
    WHEN ((state = '-10'::integer) OR (held > 0)) THEN 0
    WHEN (closing IS NOT NULL) THEN 2
    WHEN (state = 0) THEN 1
    ELSE 3
END), next_at) WHERE (next_at IS NOT NULL);
CREATE INDEX recharges_open ON recharges_tb USING btree (user_id) WHERE (state = ANY (ARRAY[0, 10]));
CREATE INDEX recharges_paid ON recharges_tb USING btree (paid_at) WHERE (state = 40);
CREATE INDEX transaction_branches_booked ON transaction_branches USING btree (log_sequence) WHERE ((participant = 'SPOT'::text) AND (state = 40));
CREATE INDEX transaction_events_by_user ON transaction_events USING btree (user_id, event_id);
CREATE INDEX transactions_by_owner ON transactions_tb USING btree (owner, order_number);
CREATE INDEX transactions_by_state ON transactions_tb USING btree (state, order_number);
CREATE INDEX transactions_unfinished ON transactions_tb USING btree (order_number) WHERE (state <> ALL (ARRAY[40, '-20'::integer]));
CREATE INDEX transactions_unsealed ON transactions_tb USING btree (order_number) WHERE ((state = 30) AND (NOT sealed));
CREATE INDEX transfers_by_user ON transfers_tb USING btree (user_id, order_number);
CREATE INDEX webhook_deliveries_by_transfer ON webhook_deliveries USING btree (endpoint, req_id, event_id) WHERE (status = 1);
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries USING btree (event_id, endpoint) WHERE (status = 3);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries USING btree (endpoint, next_at) WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries USING btree (status, ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX webhook_deliveries_of_recharge ON webhook_deliveries USING btree (req_id) WHERE (kind = 3);
CREATE INDEX webhook_deliveries_of_transaction ON webhook_deliveries USING btree (req_id) WHERE (kind = 2);
CREATE INDEX webhook_deliveries_open ON webhook_deliveries USING btree (event_id) WHERE (ended_at IS NULL);

CREATE SEQUENCE admin_audit_id_seq AS bigint INCREMENT BY 1 START WITH 1 CACHE 1 OWNED BY admin_audit.id;

-- FUNCTION approvals_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION assets_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION audit_begin_anew() RETURNS void LANGUAGE sql VOLATILE
-- FUNCTION audit_external_changes(p_users bigint[], p_assets integer[], p_sums numeric[]) RETURNS TABLE(user_id bigint, asset_id integer, difference numeric) LANGUAGE sql STABLE
-- FUNCTION audit_fold(p_incarnation bigint, p_log_sequence bigint, p_shards integer[], p_from bigint[], p_to bigint[], p_users bigint[], p_assets integer[], p_journal numeric[], p_external numeric[]) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION audit_miscounted(p_after bigint, p_until bigint) RETURNS TABLE(user_id bigint, asset_id integer, difference numeric) LANGUAGE sql STABLE SET enable_seqscan=off SET enable_hashjoin=off SET enable_mergejoin=off
-- FUNCTION audit_misfrozen(p_after bigint, p_until bigint) RETURNS TABLE(user_id bigint, asset_id integer, purpose integer, frozen numeric, counted numeric) LANGUAGE sql STABLE
-- FUNCTION audit_misheld(p_after bigint, p_until bigint) RETURNS TABLE(user_id bigint, asset_id integer, difference numeric, hold_key text) LANGUAGE sql STABLE
-- FUNCTION audit_promotions(p_from timestamp with time zone, p_to timestamp with time zone) RETURNS TABLE(subject text, what text) LANGUAGE sql STABLE
-- FUNCTION audit_recharge_accounts() RETURNS TABLE(subject text, what text) LANGUAGE sql STABLE
-- FUNCTION audit_recharges(p_from timestamp with time zone, p_to timestamp with time zone) RETURNS TABLE(subject text, what text) LANGUAGE sql STABLE
-- FUNCTION audit_recount() RETURNS TABLE(user_id bigint, asset_id integer, difference numeric) LANGUAGE sql STABLE
-- FUNCTION audit_returns(p_from timestamp with time zone, p_to timestamp with time zone) RETURNS TABLE(subject text, what text) LANGUAGE sql STABLE
-- FUNCTION audit_transactions(p_after bigint, p_until bigint) RETURNS TABLE(transaction_id text, user_id bigint, asset_id integer, what text) LANGUAGE plpgsql STABLE
-- FUNCTION audit_unbalanced(p_after bigint, p_until bigint, p_users bigint[], p_assets integer[], p_sums numeric[]) RETURNS TABLE(user_id bigint, asset_id integer, difference numeric, version bigint) LANGUAGE sql STABLE
-- FUNCTION bill_differences(p_channel text, p_day date, p_from timestamp with time zone, p_to timestamp with time zone) RETURNS TABLE(kind smallint, line_kind smallint, reference text, trade_no text, merchant_no text, return_no text, channel_return_no text, currency text, there bigint, here bigint) LANGUAGE sql STABLE
-- FUNCTION bill_findings_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION bill_lines_near(p_channel text, p_day date) RETURNS SETOF channel_bill_lines LANGUAGE sql STABLE
-- FUNCTION bill_next_is_good(p_channel text, p_day date) RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION branch_state_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION branch_state_name(p_state smallint) RETURNS text LANGUAGE sql IMMUTABLE
-- FUNCTION branches_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION channel_payments_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION channels_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION code_name(p_code smallint) RETURNS text LANGUAGE sql IMMUTABLE
-- FUNCTION decimals(p_units numeric, p_precision smallint) RETURNS numeric LANGUAGE sql IMMUTABLE
-- FUNCTION events_after(p_user bigint, p_event bigint, p_open_from bigint, p_rows integer) RETURNS TABLE(event_id bigint, order_number bigint) LANGUAGE plpgsql STABLE SET enable_seqscan=off SET enable_hashjoin=off SET enable_mergejoin=off
-- FUNCTION events_position(p_shard integer, p_event bigint, OUT o_known boolean, OUT o_open_from bigint) RETURNS record LANGUAGE sql STABLE
-- FUNCTION events_purge(p_incarnation bigint, p_lived_ms bigint, p_keep_ms bigint, p_dead_keep_ms bigint, p_rows integer, p_bytes_max bigint, OUT o_changed bigint, OUT o_trimmed bigint, OUT o_bytes bigint) RETURNS record LANGUAGE plpgsql VOLATILE
-- FUNCTION fence_incarnation(p_incarnation bigint) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION flight_guard(p_predecessors bigint, p_lowest bigint, p_transfers bigint, p_transfers_held bigint, p_accounts bigint, p_accounts_held bigint, p_accounts_absent bigint, p_balances bigint, p_balances_held bigint, p_balances_absent bigint, p_holds bigint DEFAULT 0, p_holds_held bigint DEFAULT 0, p_freezes bigint DEFAULT 0, p_freezes_held bigint DEFAULT 0) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION funding_credit(p_user bigint, p_asset integer, p_amount bigint) RETURNS numeric LANGUAGE plpgsql VOLATILE
-- FUNCTION funding_debit(p_user bigint, p_asset integer, p_amount bigint) RETURNS numeric LANGUAGE plpgsql VOLATILE
-- FUNCTION funding_effect(p_op smallint, p_amount bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
-- FUNCTION funding_holds_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION funding_operations(p_direction smallint, p_funding_at timestamp with time zone, p_funding_code smallint, p_refund_at timestamp with time zone) RETURNS smallint[] LANGUAGE sql IMMUTABLE
-- FUNCTION holds_trim(p_rows integer) RETURNS bigint LANGUAGE sql VOLATILE SET enable_seqscan=off
-- FUNCTION journal_at(p_event bigint) RETURNS TABLE(shard integer, flight bigint, incarnation bigint, event_first bigint, event_count integer, open_from bigint) LANGUAGE plpgsql STABLE
-- FUNCTION journal_behind(p_bytes bigint, p_entries bytea) RETURNS bigint LANGUAGE sql STABLE
-- FUNCTION journal_bytes(p_spare bigint) RETURNS bigint LANGUAGE sql STABLE
-- FUNCTION journal_fence(p_incarnation bigint, p_shards integer) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION journal_trim(p_event bigint, p_late bigint, p_spare bigint, p_rows bigint) RETURNS bigint LANGUAGE sql VOLATILE
-- FUNCTION journal_young(p_spare bigint, p_rows bigint) RETURNS bigint LANGUAGE sql STABLE
-- FUNCTION leg_purpose(p_place jsonb) RETURNS integer LANGUAGE sql IMMUTABLE
-- FUNCTION leg_user(p_place jsonb, p_participant text) RETURNS bigint LANGUAGE sql IMMUTABLE
-- FUNCTION payment_disposition_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION promotion_give_back(p_incarnation bigint, p_recharge uuid, p_version bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION promotions_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION receivables_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION recharge_accounts() RETURNS TABLE(channel text, asset_id integer, paid numeric, returned numeric, taken numeric, given_back numeric, owed numeric, clearing numeric, suspense numeric, receivable numeric, loss numeric, fees numeric, bank numeric, fees_moved numeric) LANGUAGE sql STABLE
-- FUNCTION recharge_events_after(p_user bigint, p_event bigint, p_rows integer) RETURNS TABLE(event_id bigint) LANGUAGE plpgsql STABLE SET enable_seqscan=off
-- FUNCTION recharge_guard(p_found bigint, p_held bigint) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION recharge_returns_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION recharge_state_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION recharges_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION return_holds(p_kind smallint, p_state smallint, p_disposition smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION return_state_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION row_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION special_agrees(p_id uuid, p_participants text[], p_legs text[]) RETURNS boolean LANGUAGE sql STABLE
-- FUNCTION special_places(p_legs text[]) RETURNS TABLE(user_id bigint, asset_id integer) LANGUAGE sql IMMUTABLE
-- FUNCTION special_set(p_user bigint, p_asset integer) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION special_stands(p_legs text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION special_unset(p_user bigint, p_asset integer) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION spot_operations(p_direction smallint, p_state smallint) RETURNS smallint[] LANGUAGE sql IMMUTABLE
-- FUNCTION transaction_accept(p_incarnation bigint, p_id uuid, p_order_number bigint, p_owner text, p_tx_id text, p_round smallint, p_decide smallint, p_at timestamp with time zone, p_expires_at timestamp with time zone, p_fingerprint bytea, p_participants text[], p_last boolean[], p_legs text[], p_payloads text[], p_followers text[]) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION transaction_accepts(p_incarnation bigint, p_ids uuid[], p_order_numbers bigint[], p_owners text[], p_tx_ids text[], p_rounds smallint[], p_decides smallint[], p_ats timestamp with time zone[], p_expiries timestamp with time zone[], p_fingerprints bytea[], p_followers text[], p_places integer[], p_participants text[], p_last boolean[], p_legs text[], p_payloads text[]) RETURNS text[] LANGUAGE plpgsql VOLATILE
-- FUNCTION transaction_booked(p_id uuid) RETURNS TABLE(user_id bigint, asset_id integer, purpose integer, taken numeric, brought numeric) LANGUAGE sql STABLE
-- FUNCTION transaction_bookings(p_behind bigint) RETURNS TABLE(transaction_id uuid, order_number bigint, done boolean, asset_id integer, funding numeric, spot numeric, outside numeric) LANGUAGE sql STABLE
-- FUNCTION transaction_cancel_unknown(p_incarnation bigint, p_id uuid, p_order_number bigint, p_owner text, p_tx_id text, p_decide smallint, p_at timestamp with time zone, p_expires_at timestamp with time zone, p_code smallint, p_by text, p_reason text) RETURNS boolean LANGUAGE plpgsql VOLATILE
-- FUNCTION transaction_commit(p_owner text, p_tx_id text, p_rounds integer) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path=pg_catalog, public, pg_temp
-- FUNCTION transaction_events_after(p_user bigint, p_event bigint, p_rows integer) RETURNS TABLE(event_id bigint, transaction_id uuid) LANGUAGE plpgsql STABLE SET enable_seqscan=off
-- FUNCTION transaction_events_last(p_user bigint) RETURNS bigint LANGUAGE plpgsql STABLE SET enable_seqscan=off
-- FUNCTION transaction_flight(p_incarnation bigint, p_at timestamp with time zone, p_moves jsonb, p_ids uuid[], p_order_numbers bigint[], p_owners text[], p_tx_ids text[], p_rounds smallint[], p_decides smallint[], p_ats timestamp with time zone[], p_expiries timestamp with time zone[], p_fingerprints bytea[], p_followers text[], p_places integer[], p_participants text[], p_last boolean[], p_legs text[], p_payloads text[], p_event_first bigint, p_endpoints text[], OUT moved text, OUT accepted text[]) RETURNS record LANGUAGE plpgsql VOLATILE
-- FUNCTION transaction_is_booked(p_state smallint, p_stores_ended_at timestamp with time zone) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION transaction_outside(p_id uuid) RETURNS TABLE(user_id bigint, asset_id integer, deposited numeric, withdrawn numeric) LANGUAGE sql STABLE
-- FUNCTION transaction_parts_of_user(p_user bigint, p_behind bigint) RETURNS TABLE(transaction_id uuid, order_number bigint, asset_id integer, funding numeric, spot numeric, settled boolean) LANGUAGE sql STABLE
-- FUNCTION transaction_passage(p_state smallint, p_at timestamp with time zone, p_by text, p_reason text) RETURNS jsonb LANGUAGE sql STABLE
-- FUNCTION transaction_record(p_incarnation bigint, p_at timestamp with time zone, p_moves jsonb, p_event_first bigint, p_endpoints text[]) RETURNS text LANGUAGE plpgsql VOLATILE
-- FUNCTION transaction_state_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION transaction_state_name(p_state smallint) RETURNS text LANGUAGE sql IMMUTABLE
-- FUNCTION transaction_tell(p_id uuid, p_event_id bigint, p_at timestamp with time zone, p_endpoints text[]) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION transactions_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION transfer_state_admits(p_old smallint, p_new smallint) RETURNS boolean LANGUAGE sql IMMUTABLE
-- FUNCTION transfers_guard() RETURNS trigger LANGUAGE plpgsql VOLATILE
-- FUNCTION ulid_text(p_id uuid) RETURNS text LANGUAGE sql IMMUTABLE
-- FUNCTION ulid_uuid(p_text text) RETURNS uuid LANGUAGE plpgsql IMMUTABLE
-- FUNCTION watermark_lived(p_incarnation bigint, p_lived_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE
-- FUNCTION watermark_note_open(p_incarnation bigint, p_open_from bigint, p_open_old bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION watermark_observe(p_incarnation bigint, p_number bigint, p_lived_ms bigint, p_keep_ms bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
-- FUNCTION watermark_raise(p_incarnation bigint, p_target bigint, p_keep_ms bigint, p_rows integer, OUT o_watermark bigint, OUT o_more boolean, OUT o_oldest_s double precision) RETURNS record LANGUAGE plpgsql VOLATILE SET enable_seqscan=off SET plan_cache_mode=force_custom_plan
-- FUNCTION watermark_recount() RETURNS TABLE(user_id bigint, asset_id integer, difference numeric) LANGUAGE sql STABLE
-- FUNCTION webhook_begin(p_incarnation bigint, p_endpoints text[]) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION webhook_collect(p_incarnation bigint, p_endpoints text[], p_shards integer[], p_from bigint[], p_until bigint[], p_event_ids bigint[], p_order_numbers bigint[], p_states text[], p_at timestamp with time zone[], p_recharges uuid[]) RETURNS bigint LANGUAGE plpgsql VOLATILE
-- FUNCTION webhook_fence(p_incarnation bigint) RETURNS void LANGUAGE plpgsql VOLATILE
-- FUNCTION webhook_line_up(p_endpoint text, p_req_ids uuid[]) RETURNS void LANGUAGE sql VOLATILE
-- FUNCTION webhook_note(p_incarnation bigint, p_endpoint text, p_event_ids bigint[], p_errors text[], p_delays_ms bigint[], p_attempts_max integer) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
-- FUNCTION webhook_resend(p_incarnation bigint, p_event_id bigint, p_actor text, p_reason text) RETURNS bigint LANGUAGE plpgsql VOLATILE

CREATE TRIGGER approvals_guard BEFORE UPDATE ON approvals_tb FOR EACH ROW WHEN (old.state <> 1 AND (old.state IS DISTINCT FROM new.state OR old.decider IS DISTINCT FROM new.decider)) EXECUTE FUNCTION approvals_guard();
CREATE TRIGGER approvals_identity_guard BEFORE UPDATE OF approval_id, action, subject, request, maker, reason, created_at, expires_at ON approvals_tb FOR EACH ROW EXECUTE FUNCTION approvals_guard();
CREATE TRIGGER assets_delete_guard BEFORE DELETE ON assets_tb FOR EACH ROW EXECUTE FUNCTION assets_guard();
CREATE TRIGGER assets_identity_guard BEFORE UPDATE ON assets_tb FOR EACH ROW WHEN (old.asset_id IS DISTINCT FROM new.asset_id OR old.symbol::text IS DISTINCT FROM new.symbol::text OR old."precision" IS DISTINCT FROM new."precision") EXECUTE FUNCTION assets_guard();
CREATE TRIGGER assets_truncate_guard BEFORE TRUNCATE ON assets_tb FOR EACH STATEMENT EXECUTE FUNCTION assets_guard();
CREATE TRIGGER bill_findings_guard BEFORE DELETE OR UPDATE ON bill_findings FOR EACH ROW EXECUTE FUNCTION bill_findings_guard();
CREATE TRIGGER channel_payments_guard BEFORE DELETE OR UPDATE ON channel_payments FOR EACH ROW EXECUTE FUNCTION channel_payments_guard();
CREATE TRIGGER channels_guard BEFORE DELETE OR UPDATE ON channels_tb FOR EACH ROW EXECUTE FUNCTION channels_guard();
CREATE TRIGGER external_operations_guard BEFORE DELETE OR UPDATE ON external_operations FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER freezes_delete_guard BEFORE DELETE ON freezes_tb FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER funding_holds_guard BEFORE DELETE OR UPDATE ON funding_holds FOR EACH ROW EXECUTE FUNCTION funding_holds_guard();
CREATE TRIGGER promotions_guard BEFORE DELETE OR UPDATE ON promotions_tb FOR EACH ROW EXECUTE FUNCTION promotions_guard();
CREATE TRIGGER receivables_guard BEFORE DELETE OR UPDATE ON receivables_tb FOR EACH ROW EXECUTE FUNCTION receivables_guard();
CREATE TRIGGER recharge_events_guard BEFORE DELETE OR UPDATE ON recharge_events FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER recharge_movements_guard BEFORE DELETE OR UPDATE ON recharge_movements FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER recharge_returns_guard BEFORE DELETE OR UPDATE ON recharge_returns FOR EACH ROW EXECUTE FUNCTION recharge_returns_guard();
CREATE TRIGGER recharges_guard BEFORE DELETE OR UPDATE ON recharges_tb FOR EACH ROW EXECUTE FUNCTION recharges_guard();
CREATE TRIGGER branches_delete_guard BEFORE DELETE ON transaction_branches FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER branches_guard BEFORE UPDATE ON transaction_branches FOR EACH ROW EXECUTE FUNCTION branches_guard();
CREATE TRIGGER branches_identity_guard BEFORE UPDATE OF transaction_id, round, participant, last, fingerprint, legs, payload, followers ON transaction_branches FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER transactions_delete_guard BEFORE DELETE ON transactions_tb FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER transactions_guard BEFORE UPDATE ON transactions_tb FOR EACH ROW EXECUTE FUNCTION transactions_guard();
CREATE TRIGGER transactions_identity_guard BEFORE UPDATE OF transaction_id, order_number, owner, tx_id, decide, created_at, expires_at ON transactions_tb FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER transfers_delete_guard BEFORE DELETE ON transfers_tb FOR EACH ROW EXECUTE FUNCTION row_guard();
CREATE TRIGGER transfers_guard BEFORE UPDATE OF state, funding_at, funding_code, funding_after, refund_at, refund_after ON transfers_tb FOR EACH ROW EXECUTE FUNCTION transfers_guard();
CREATE TRIGGER transfers_identity_guard BEFORE UPDATE OF order_number, req_id, cid, user_id, asset_id, amount, direction ON transfers_tb FOR EACH ROW EXECUTE FUNCTION row_guard();

-- ROW audit_state {"singleton": true, "incarnation": 0, "log_sequence": 0}
-- ROW engine_state {"halted": false, "posted": false, "singleton": true, "watermark": 0, "development": false, "halt_reason": null, "incarnation": 0, "restored_at": null, "log_identity": null, "recover_needed": false}
-- ROW watermark_clock {"lived_ms": 0, "before_ms": 0, "singleton": true, "incarnation": 0}
-- ROW watermark_open {"open_old": [], "open_from": 0, "singleton": true}
