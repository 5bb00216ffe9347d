//! Suspensions, commands, the feed, lists.

use std::collections::BTreeMap;

use alloy_primitives::{B256, U256};
use chain::fee::GasPrice;
use chain::state::TxState;
use chain::tx::{NewTx, SubState, Tx, TxId, Wish};
use txm::store::{CommandWish, Created, StoreError, Suspension, TxStore};
use ubscore::postgres::txm::details::{
    Adoption, CommandState, FeedCursor, NewCommand, SignerKind, ToAdopt, TxEventKind, TxImport,
    TxListFilter, Verdict,
};
use ubscore::postgres::txm::reads::TxmReads;
use ubscore::postgres::txm::schema;
use ubscore::postgres::txm::store::{NodeRefusal, NodeStart, TxmStore};

use super::{
    DEED, Rows, created, first_attempt, new_row, node_start, owned, request, signer, written,
};
use crate::harness::{LIMITS, block_on};

/// Goal: a database is bound to one chain, and to the lease of its nodes while one is alive.
#[test]
fn a_database_is_bound_to_its_chain_and_its_lease() {
    let rows = Rows::new();
    let start =
        |start: NodeStart| block_on(TxmStore::start(&rows.site.target(), &LIMITS, 1, &start));
    let bound = |start: Result<TxmStore, NodeRefusal>| match start {
        Err(NodeRefusal::Bound(difference)) => difference,
        other => panic!("{:?}", other.map(|store| store.incarnation())),
    };
    let other = bound(start(NodeStart { chain_id: 1, ..node_start("x") }));
    assert!(other.contains("chain 31337") && other.contains("chain 1"), "{other}");
    bound(start(NodeStart { genesis: B256::ZERO, ..node_start("x") }));
    let store = rows.node("a");
    let lease = owned(&store);
    let longer =
        || NodeStart { lease_duration: std::time::Duration::from_secs(20), ..node_start("x") };
    let other = bound(start(longer()));
    assert!(other.starts_with("lease"), "{other}");
    block_on(store.release(lease)).expect("released");
    let store = start(longer()).expect("no lease is alive");
    assert!(store.incarnation() > 1);
}

/// Another's transactions at these nonces.
fn foreign(nonces: &[u64]) -> BTreeMap<u64, B256> {
    nonces.iter().map(|nonce| (*nonce, B256::repeat_byte(9))).collect()
}

/// The answer to an adoption by two operators.
fn seconded(reads: &TxmReads, adoption: &Adoption) -> Result<bool, StoreError> {
    let asked = block_on(reads.ask_adopt(signer(1), adoption, &DEED)).expect("a command");
    assert_eq!(block_on(reads.second(asked, DEED.actor)), Ok(false), "two operators");
    block_on(reads.second(asked, "op-2"))
}

/// Goal: rows that have come to another server are not used before a person has compared them.
#[test]
fn another_server_suspends_every_signer_until_two_operators_adopt() {
    let rows = Rows::with_signers(2);
    let store = rows.node("a");
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    created(&store, lease, "r0");
    rows.site.sql("UPDATE txm.settings SET system_identifier = system_identifier - 1");
    let late = block_on(store.create(lease, 0, &[request("r1")]));
    assert_eq!(late, Err(StoreError::Fenced { found: Some(1) }), "before anything was compared");
    assert_eq!(block_on(store.renew()), Ok(Vec::new()), "its owner reads its book anew");
    let lease = owned(&store);
    assert_eq!(lease.token, 2);
    for row in block_on(reads.signers()).expect("signers") {
        assert_eq!(row.suspensions[0].reason, "DATABASE_RESTORED", "{row:?}");
    }
    block_on(store.suspend(lease, "NONCE_TAKEN", "another's transaction")).expect("suspended");
    for reason in ["DATABASE_RESTORED", "NONCE_TAKEN"] {
        let refused = block_on(reads.resume(signer(1), reason, &DEED));
        assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    }
    let adopt = |named: &[u64]| {
        let adoption = Adoption { cursor: 3, foreign: foreign(named), ..Adoption::default() };
        seconded(&reads, &adoption)
    };
    let partly = adopt(&[1]);
    assert!(matches!(partly, Err(StoreError::Away(_))), "{partly:?}");
    assert_eq!(adopt(&[1, 2]), Ok(true));
    let signers = block_on(reads.signers()).expect("signers");
    assert_eq!((signers[0].cursor, signers[0].suspensions.len()), (3, 0));
    assert_eq!((signers[1].cursor, signers[1].suspensions.len()), (0, 1));
    // The adoption has ended the lease: its owner knew older rows.
    let lease = owned(&store);
    assert_eq!(block_on(store.open(lease)).expect("a book").jumped, [1, 2]);
    assert_eq!(rows.site.sql_value("SELECT epoch FROM txm.settings"), "2");
    rows.site.sql("UPDATE txm.settings SET timeline = timeline + 1");
    block_on(store.renew()).expect("renewed");
    assert_eq!(rows.site.sql_value("SELECT epoch FROM txm.settings"), "3");
    block_on(store.renew()).expect("renewed");
    assert_eq!(rows.site.sql_value("SELECT epoch FROM txm.settings"), "3");
}

/// A mined transaction that pays a request, with bytes and a hash of this number.
fn import(new: NewTx, number: u8) -> TxImport {
    let price = GasPrice { max_fee: 30, max_tip: 2 };
    TxImport { new, raw: vec![2, number].into(), hash: B256::repeat_byte(number), price }
}

/// Goal: an import is the row of its nonce, as a repeat of its request finds it. Method: of five
/// nonces two are another's; one request is there without a nonce; wrong imports change nothing.
#[test]
fn an_import_is_the_row_that_a_repeat_finds() {
    let rows = Rows::new();
    let (store, reads) = (rows.node("a"), TxmReads::new(rows.node("b").pool().clone()));
    let lease = owned(&store);
    assert_eq!(created(&store, lease, "r0").nonce, Some(0));
    let kept = new_row(&block_on(store.keep(&request("kept"))).expect("kept"));
    block_on(store.suspend(lease, "NONCE_AHEAD", "a test")).expect("suspended");
    let adopt = |named: &[u64], imports: &[(u64, TxImport)]| {
        let imports = imports.iter().cloned().collect();
        let (cursor, foreign) = (6, foreign(named));
        seconded(&reads, &Adoption { cursor, foreign, imports, ..Adoption::default() })
    };
    let forgotten = NewTx { business_key: Some("order/2".to_owned()), ..request("forgotten") };
    let ours = [(2, import(forgotten.clone(), 2)), (3, import(request("kept"), 3))];
    let mut longer = request("kept");
    longer.payload.value += U256::from(1);
    let taken = [(2, import(request("r0"), 2)), (3, import(request("x"), 3))];
    let other = [(2, import(longer, 2)), (3, import(request("x"), 3))];
    let below = [(0, import(request("x"), 3))];
    for (foreign, imports) in [
        (&[1, 4][..], &ours[..]),
        (&[1, 4, 5][..], &taken[..]),
        (&[1, 4, 5][..], &other[..]),
        (&[1, 2, 4, 5][..], &ours[..]),
        (&[1, 2, 3, 4, 5][..], &below[..]),
    ] {
        let refused = adopt(foreign, imports);
        assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    }
    assert_eq!(adopt(&[1, 4, 5], &ours), Ok(true));
    let lease = owned(&store);
    let book = block_on(store.open(lease)).expect("a book");
    assert_eq!((book.cursor, book.jumped, book.suspensions.len()), (6, vec![1, 4, 5], 0));
    let row = |tx: &&Tx| tx.nonce == Some(2);
    let row = book.txs.iter().find(row).expect("a row");
    assert_eq!(
        (row.state, row.sub, row.wish),
        (TxState::Tracking, Some(SubState::Pending), Wish::Pay)
    );
    assert_eq!(row.new, forgotten);
    let attempt = &row.attempts[0];
    assert_eq!((attempt.hash, attempt.raw.to_vec()), (B256::repeat_byte(2), vec![2, 2]));
    let numbered = block_on(store.find(signer(1), "kept")).expect("an answer").expect("a row");
    assert_eq!((numbered.id, numbered.nonce, numbered.attempts.len()), (kept.id, Some(3), 1));
    // A repeat of the request gets the row, and another payload does not.
    let mut other = forgotten.clone();
    other.payload.value += U256::from(1);
    let elsewhere = NewTx { request_id: "again".to_owned(), ..forgotten.clone() };
    let made = block_on(store.create(lease, 0, &[forgotten, other, elsewhere])).expect("made");
    assert_eq!(made[0], Created::Known(Box::new(row.clone())));
    assert_eq!(made[1], Created::Conflict(vec!["value".to_owned()]));
    assert_eq!(made[2], Created::Conflict(vec!["businessKey".to_owned()]));
    assert_eq!(created(&store, lease, "next").nonce, Some(6));
}

/// Goal: behind a restore no nonce that was given before is given again, and nothing that the lost
/// database has ended is paid. Method: the copy has the cursor 1 and two requests without a nonce,
/// and a node has seen 3. An adoption leaves the suspension; the next nonces are filled, and one
/// fill loses to a payment of ours.
#[test]
fn an_older_copy_waits_for_nonces_that_were_seen_and_names_its_requests() {
    let rows = Rows::new();
    let (store, reads) = (rows.node("a"), TxmReads::new(rows.node("b").pool().clone()));
    let lease = owned(&store);
    assert_eq!(created(&store, lease, "r0").nonce, Some(0));
    let kept = ["paid", "given up"]
        .map(|id| new_row(&block_on(store.keep(&request(id))).expect("kept")).id);
    rows.step("1 second");
    // They were given, and all but the last one were signed.
    let seen = |signed: u64| {
        let numbers =
            format!(r#"{{"epoch":1,"token":1,"nonce":{},"signed":{signed}}}"#, signed + 1);
        let seen = format!(r#"{{"{}":{numbers}}}"#, super::name());
        rows.site.sql_value(&format!("SELECT epoch FROM txm.compare_seen('{seen}')"))
    };
    assert_eq!([seen(0), seen(2), seen(3), seen(2)], ["1", "2", "2", "2"]);
    // A request that came since then is a new one: its client waits for it.
    block_on(store.keep(&request("new"))).expect("kept");
    let needs = block_on(reads.to_adopt(signer(1))).expect("an answer");
    let waiting = vec!["given up".to_owned(), "paid".to_owned()];
    let wanted = ToAdopt { seen: Some(3), waiting, ..ToAdopt::default() };
    assert_eq!(needs, wanted);

    let suspended = || block_on(reads.signers()).expect("signers")[0].suspensions.len();
    let adoption = Adoption { cursor: 1, ..Adoption::default() };
    assert_eq!(seconded(&reads, &adoption), Ok(true));
    assert_eq!(suspended(), 1, "nonces 1 and 2 may be under way");
    let lease = owned(&store);
    let unasked = block_on(store.fill(lease, &[1], false));
    assert_eq!(unasked, Err(StoreError::Suspended));
    let filled = |nonces: &[u64]| {
        let rows = block_on(store.fill(lease, nonces, true)).expect("an answer");
        rows.iter().filter(|row| row.is_some()).count()
    };
    assert_eq!((filled(&[1, 2, 3]), filled(&[1, 2])), (0, 2), "all or none");

    let lost = NewTx { business_key: Some("order/2".to_owned()), ..request("lost") };
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let whole = Adoption {
        cursor: 3,
        foreign: BTreeMap::new(),
        imports: [(2, import(lost.clone(), 2))].into(),
        pays: ids(&["paid"]),
        drops: ids(&["given up"]),
        rest: None,
    };
    let end = |nonce: u64, code: u8| {
        rows.site.sql(&format!(
            "UPDATE txm.managed_tx SET state = -10, sub_state = NULL, code = {code}, \
                    final_at = txm.clock(), version = version + 1 WHERE nonce = {nonce}"
        ));
    };
    let refused = |adoption: &Adoption| {
        let refused = seconded(&reads, adoption);
        assert!(matches!(refused, Err(StoreError::Away(_))), "{adoption:?}: {refused:?}");
    };
    end(1, 5);
    refused(&whole);
    end(2, 6);
    for partly in [
        Adoption { imports: BTreeMap::new(), ..whole.clone() },
        Adoption { foreign: foreign(&[2]), ..whole.clone() },
        Adoption { imports: [(1, import(lost.clone(), 2))].into(), ..whole.clone() },
        Adoption { imports: [(0, import(lost.clone(), 2))].into(), ..whole.clone() },
        Adoption { drops: Vec::new(), ..whole.clone() },
        Adoption { pays: ids(&["paid", "given up"]), ..whole.clone() },
    ] {
        refused(&partly);
    }
    let whole = Adoption { drops: Vec::new(), rest: Some(Verdict::Drop), ..whole };
    assert_eq!((seconded(&reads, &whole), suspended()), (Ok(true), 0));
    let found = |id: &str| block_on(store.find(signer(1), id)).expect("an answer").expect("a row");
    let lost = found("lost");
    assert_eq!((lost.state, lost.nonce), (TxState::Tracking, Some(2)));
    let dropped = found("given up");
    let reason = dropped.refusal.as_deref();
    assert_eq!((dropped.id, dropped.state, reason), (kept[1], TxState::Failed, Some("CANCELLED")));
    assert!(dropped.is_final && found("paid").state == TxState::Created);
    let told = format!(
        "SELECT body ->> 'state' FROM txm.tx_events WHERE tx_id = '{}' ORDER BY event_id",
        dropped.id
    );
    assert_eq!(rows.column(&told), ["CREATED", "FAILED"]);
    let lease = owned(&store);
    assert_eq!(block_on(store.open(lease)).expect("a book").cursor, 3);
    assert_eq!(seen(3), "2", "all of them are known now");
    assert_eq!((seen(5), suspended()), ("3".to_owned(), 1), "another node has seen more");
}

/// Goal: an older node takes no newer functions away, and waits for a table that is in use. Method:
/// a later version beside the functions; then an older one, while a transaction holds a table.
#[test]
fn functions_go_forward_only_and_wait_for_their_tables() {
    let rows = Rows::new();
    let kept = "SELECT hash FROM txm.functions";
    let own = rows.site.sql_value(kept);
    let migrate = || block_on(schema::migrate(&rows.site.target(), &LIMITS)).expect("a schema");
    rows.site.sql("UPDATE txm.functions SET hash = '99-x'");
    migrate();
    assert_eq!(rows.site.sql_value(kept), "99-x");
    rows.site.sql("UPDATE txm.functions SET hash = 'of no version'");
    let holder = rows.site.session();
    holder.sql("BEGIN; LOCK TABLE txm.managed_tx IN ROW EXCLUSIVE MODE");
    std::thread::scope(|scope| {
        let migrating = scope.spawn(migrate);
        // It lets others pass between its tries.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND wait_event_type = 'Lock'";
        for want in ["1", "0"] {
            crate::harness::eventually("its try", || {
                (rows.site.sql_value(waits) == want).then_some(())
            });
        }
        holder.sql("COMMIT");
        migrating.join().expect("it is done");
    });
    assert_eq!(rows.site.sql_value(kept), own);
}

/// Goal: suspensions are a set: each is added and lifted by its reason.
#[test]
fn suspensions_are_a_set_that_the_owner_sees() {
    let rows = Rows::new();
    let store = rows.node("a");
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    let halt = |actor: &str| {
        let reason = format!("halt/{actor}");
        let suspension = Suspension { reason, actor: actor.to_owned() };
        block_on(reads.suspend(signer(1), &suspension, "a halt"))
    };
    assert_eq!((halt("core"), halt("core"), halt("desk")), (Ok(true), Ok(false), Ok(true)));
    block_on(store.suspend(lease, "NONCE_AHEAD", "chain 9, cursor 0")).expect("suspended");
    let arrived = block_on(store.arrived(&[lease], &[])).expect("an answer");
    let reasons = arrived.suspended[0].1.iter().map(|one| one.reason.as_str());
    let reasons: Vec<_> = reasons.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    assert_eq!(reasons, ["NONCE_AHEAD", "halt/core", "halt/desk"]);
    assert_eq!(block_on(reads.resume(signer(1), "halt/core", &DEED)), Ok(true));
    assert_eq!(block_on(reads.resume(signer(1), "halt/core", &DEED)), Ok(false));
    let row = block_on(reads.signers()).expect("signers").remove(0);
    assert_eq!((row.suspensions.len(), row.kind), (2, SignerKind::Keystore));
    assert_eq!((row.owner.as_deref(), row.token), (Some("a"), lease.token));
}

/// Goal: a command is a row of any node, carried out once by the owner; some want two operators.
#[test]
fn a_command_is_carried_out_once_by_the_owner() {
    let rows = Rows::new();
    let (store, other) = (rows.node("a"), rows.node("b"));
    let reads = TxmReads::new(other.pool().clone());
    let lease = owned(&store);
    let tx = created(&store, lease, "r1");
    let ask = |tx: Option<TxId>, wish: &CommandWish| {
        let command = NewCommand { signer: signer(1), tx, wish: wish.clone(), deed: DEED };
        block_on(reads.command(&command))
    };
    let wishes = [
        CommandWish::Resubmit,
        CommandWish::Fill,
        CommandWish::ResolveHash(B256::repeat_byte(3)),
        CommandWish::Release,
        CommandWish::Resolve { is_paid: true },
    ];
    let asked: Vec<u64> =
        wishes.iter().map(|wish| ask(Some(tx.id), wish).expect("a command")).collect();
    let open = || {
        let arrived = block_on(store.arrived(&[lease], &[])).expect("an answer");
        arrived.commands.into_iter().map(|(_, it)| (it.id, it.wish)).collect::<Vec<_>>()
    };
    let want: Vec<_> = asked.iter().copied().zip(wishes.clone()).collect();
    assert_eq!(open(), want[..4], "the last one wants two");
    assert_eq!(block_on(reads.command_state(asked[4])), Ok(Some(CommandState::Unseconded)));
    assert_eq!(block_on(reads.second(asked[4], "op-2")), Ok(true));
    assert_eq!(open(), want);
    assert_eq!(block_on(store.open(lease)).expect("a book").commands.len(), 5);
    block_on(store.commanded(lease, asked[0], None)).expect("done");
    block_on(store.commanded(lease, asked[1], Some("too late"))).expect("refused");
    block_on(store.commanded(lease, asked[0], Some("again"))).expect("a repeat");
    let state = |command: u64| block_on(reads.command_state(command)).expect("an answer");
    assert_eq!(state(asked[0]), Some(CommandState::Done));
    assert_eq!(state(asked[1]), Some(CommandState::Refused("too late".to_owned())));
    assert_eq!((state(asked[2]), state(999)), (Some(CommandState::Open), None));
    let foreign = ask(Some(TxId(uuid::Uuid::nil())), &CommandWish::Fill);
    assert!(matches!(foreign, Err(StoreError::Away(_))), "{foreign:?}");
    let cancel = || ask(Some(tx.id), &CommandWish::Cancel).expect("a command");
    let first = cancel();
    assert_eq!(cancel(), first, "one open cancel is enough");
    block_on(store.commanded(lease, first, None)).expect("done");
    assert!(cancel() > first, "it is over");
    // A command alone is work.
    block_on(store.release(lease)).expect("released");
    assert_eq!(block_on(other.wanting(9)).expect("an answer").signers, [signer(1)]);
}

/// Goal: the feed tells every event once, in its order, and nothing behind a place it has passed.
/// Method: a transaction that is open while later ones commit.
#[test]
fn the_feed_waits_for_the_oldest_running_transaction() {
    let rows = Rows::new();
    let store = rows.node("a");
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    let events = |after| block_on(reads.events(after, 100)).expect("an answer");
    let tx = created(&store, lease, "r1");
    // Other databases of the server may have transactions under way for a moment.
    let first = crate::harness::eventually("the first event", || {
        events(FeedCursor::default()).into_iter().next()
    });
    assert_eq!((first.tx, first.seq, first.kind), (tx.id, 1, TxEventKind::State));
    assert_eq!((first.signer, first.request_id.as_str()), (signer(1), "r1"));
    assert_eq!(first.body["state"], "ALLOCATED");
    let early = rows.site.session();
    early.sql(&format!(
        "BEGIN; SELECT txm.keep('{}', 1, '{{\"request_id\": \"early\", \"fingerprint\": \"f\", \
         \"payload\": {{\"to\": \"\"}}}}', 9)",
        super::name()
    ));
    written(&store, lease, first_attempt(&tx)).expect("its version");
    assert_eq!(events(first.cursor), [], "it would stand before");
    early.sql("COMMIT");
    let rest = crate::harness::eventually("both events", || {
        let rest = events(first.cursor);
        (rest.len() == 2).then_some(rest)
    });
    assert_eq!(rest[0].request_id, "early");
    assert_eq!((rest[1].tx, rest[1].seq), (tx.id, 2));
    assert_eq!(rest[1].body["state"], "SUBMITTED");
    assert!(rest.is_sorted_by_key(|event| event.cursor));
}

/// Goal: lists are in pages, the newest first, by signer, state and time; queries keep their order.
#[test]
fn lists_come_in_pages_and_queries_in_their_order() {
    let rows = Rows::new();
    let store = rows.node("a");
    let reads = TxmReads::new(store.pool().clone());
    let lease = owned(&store);
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(created(&store, lease, &format!("r{number}")).id);
        rows.step("10 milliseconds");
    }
    block_on(store.keep(&request("k"))).expect("kept");
    let list = |filter: &TxListFilter| block_on(reads.list(filter)).expect("a page");
    let mine = TxListFilter {
        signer: Some(signer(1)),
        state: Some(TxState::Allocated),
        limit: 2,
        ..TxListFilter::default()
    };
    let (mut found, mut below) = (Vec::new(), None);
    loop {
        let page = list(&TxListFilter { below, ..mine.clone() });
        found.extend(page.txs.iter().map(|it| it.tx.id));
        below = page.next;
        if below.is_none() {
            break;
        }
    }
    found.reverse();
    assert_eq!(found, ids);
    let third = block_on(reads.get(ids[2])).expect("an answer").expect("a row");
    let since = TxListFilter { since_ms: Some(third.created_ms), limit: 100, ..mine };
    assert_eq!(list(&since).txs.len(), 3);
    assert_eq!(list(&TxListFilter { signer: Some(signer(9)), ..since }).txs, []);
    let asked = ["r3", "none", "r0"].map(|id| (signer(1), id.to_owned()));
    let found = block_on(reads.query(&asked)).expect("an answer");
    let found: Vec<_> = found.into_iter().map(|it| it.map(|it| it.tx.id)).collect();
    assert_eq!(found, [Some(ids[3]), None, Some(ids[0])]);
    // The bytes of attempts are long, and no list shows them.
    let tx = created(&store, lease, "last");
    written(&store, lease, first_attempt(&tx)).expect("its version");
    let all = list(&TxListFilter { limit: 100, ..TxListFilter::default() }).txs;
    let listed = all.iter().find(|listed| listed.tx.id == tx.id).expect("in the list");
    let read = block_on(reads.get(tx.id)).expect("an answer").expect("a row");
    assert_eq!(listed.tx.attempts[0].hash, read.tx.attempts[0].hash);
    assert!(listed.tx.attempts[0].raw.is_empty() && !read.tx.attempts[0].raw.is_empty());
}
