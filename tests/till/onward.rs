use super::*;

use domain::account::AccountStatus;
use domain::asset::AssetStatus;
use domain::code::Code;
use domain::transfer::{Cid, Direction};
use ubscore::coordinator::Request;
use ubscore::coordinator::recharges::forward::{Forwarding, forward_cid};
use ubscore::recharge::order::FollowState;
use ubscore::validation::{Checked, Draft};

/// An order for Spot that was paid for.
fn paid(shop: &Shop, channel: &str, key: &str) -> Recharge {
    let order = shop.made_for(channel, key, RechargeTarget::Spot);
    let order = shop.is(&order, RechargeState::Paying);
    let trade_no = shop.pays(&order, &json!({}));
    shop.told(&order, &trade_no);
    shop.till.look(order.id);
    order
}

fn follows(shop: &Shop, order: &Recharge, to: FollowState) -> Recharge {
    shop.until(to.name(), order, |order| order.follow.state == to)
}

fn transfers(shop: &Shop, order: &Recharge) -> Vec<Vec<String>> {
    let cid = forward_cid(order.id);
    shop.site.sql(&format!(
        "SELECT state, amount FROM transfers_tb WHERE cid = '{}' AND user_id = 1001",
        cid.as_str()
    ))
}

/// Goal: paid money arrives on Spot, once, and a user's limits do not count it. Where it cannot, it
/// stays in Funding, and the order says so.
#[test]
fn rch_029_paid_money_arrives_on_spot_once() {
    let shop = Shop::new();
    for channel in BOTH {
        let order = paid(&shop, channel, channel);
        let arrived = follows(&shop, &order, FollowState::Arrived);
        assert_eq!(arrived.next_at, None);
        let hundred = (100 * COIN).to_string();
        // The mark of an end may follow the answer.
        let there = || (transfers(&shop, &order) == [["40", &hundred]]).then_some(());
        eventually("the mark of its end", there);
        // As behind a crash between the transfer and its note.
        let again = block_on(shop.recharges.forward(&arrived, PATIENT)).expect("an answer");
        let Forwarding::Ended { req_id, .. } = again else { panic!("{again:?}") };
        assert_eq!(arrived.follow.req_id, Some(req_id));
        assert_eq!(transfers(&shop, &order).len(), 1);
    }
    assert_eq!(shop.available(), 10 * COIN);
    let user = UserId::new(USER).expect("an id");
    let mut counted = 0;
    let count = shop.reads.accepted_since(user, Timestamp::UNIX_EPOCH, |_| {
        counted += 1;
        true
    });
    block_on(count).expect("read");
    assert_eq!(counted, 0, "no limit counts it");
    shop.stop();
}

/// Goal: a frozen account keeps its money in Funding for good, and the order has the code.
#[test]
fn rch_029_a_frozen_account_keeps_the_money_in_funding() {
    let shop = Shop::new();
    let user = UserId::new(USER).expect("an id");
    let (actor, reason) = ("a test".to_owned(), "a test".to_owned());
    let frozen = shop.coordinator.set_funding_status(user, AccountStatus::Frozen, actor, reason);
    block_on(frozen).expect("set");
    let order = paid(&shop, "wechat", "frozen");
    let failed = follows(&shop, &order, FollowState::Failed);
    assert_eq!((failed.state, failed.next_at), (RechargeState::Paid, None));
    assert_eq!(failed.follow.code, Some(Code::AccountFrozen));
    assert!(failed.follow.req_id.is_some());
    assert_eq!(shop.available(), 110 * COIN);
    shop.stop();
}

/// Goal: a pause and a suspended asset are waited for, up to the bound.
#[test]
fn rch_029_a_pause_is_waited_for_and_then_given_up() {
    let shop = Shop::new();
    shop.site.sql(
        "INSERT INTO pauses_tb (direction, asset_id, actor, reason) VALUES (1, 0, 'a', 'a test')",
    );
    block_on(shop.reads.load_pauses()).expect("read");
    let order = paid(&shop, "wechat", "paused");
    let waits = shop.until("the reason", &order, |order| order.follow.code.is_some());
    assert_eq!(waits.follow.code, Some(Code::TransferNotAllowed));
    assert_eq!(waits.follow.state, FollowState::Waiting);
    shop.later(86_401, &order);
    let over = follows(&shop, &order, FollowState::GivenUp);
    assert_eq!((over.follow.code, over.next_at), (Some(Code::TransferNotAllowed), None));
    assert_eq!(transfers(&shop, &order).len(), 0);
    assert_eq!(shop.available(), 110 * COIN);

    shop.later(0, &order);
    shop.site.sql("DELETE FROM pauses_tb");
    block_on(shop.reads.load_pauses()).expect("read");
    let active = shop.catalog.load_full();
    let mut suspended: Vec<_> = active.all().into_iter().cloned().collect();
    for asset in &mut suspended {
        asset.status = AssetStatus::Suspended;
    }
    shop.catalog.store(Arc::new(Catalog::new(suspended)));
    let order = paid(&shop, "card", "suspended");
    let waits = shop.until("the reason", &order, |order| order.follow.code.is_some());
    assert_eq!(waits.follow.code, Some(Code::AssetSuspended));
    shop.catalog.store(active);
    shop.later(400, &order);
    follows(&shop, &order, FollowState::Arrived);
    assert_eq!(shop.available(), 110 * COIN);
    shop.stop();
}

/// Goal: no client's cid can take the place of the transfer of an order.
#[test]
fn rch_030_no_clients_cid_can_take_its_place() {
    let shop = Shop::new();
    let order = shop.made_for("wechat", "order", RechargeTarget::Spot);
    let order = shop.is(&order, RechargeState::Paying);
    let cid = forward_cid(order.id);
    assert_eq!(Cid::new(cid.as_str()), None);
    let body = json!({
        "from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1", "cid": cid.as_str()
    });
    let draft = Draft::parse(body.to_string().as_bytes()).expect("in good form");
    assert_eq!(draft.cid(), Err(Code::InvalidRequest));
    // The nearest one that a client can have.
    let near = Cid::new(&cid.as_str().replace('/', ":")).expect("a cid");
    let asset = shop.catalog.load().by_id(AssetId(3)).expect("known").clone();
    let amount = Amount::new(100_000_000).expect("not zero");
    let request = Request {
        user: order.user,
        cid: Some(near),
        checked: Checked { direction: Direction::FundingToSpot, asset, amount },
        fingerprint: "FUNDING:SPOT:USDT:1".to_owned(),
        reservation: None,
        pauses: Arc::default(),
    };
    let accepted = block_on(async {
        let submitted = shop.coordinator.submit(request).await.expect("in good form");
        submitted.reply.await.expect("an answer")
    });
    drop(accepted.expect("accepted"));
    let trade_no = shop.pays(&order, &json!({}));
    shop.told(&order, &trade_no);
    shop.till.look(order.id);
    follows(&shop, &order, FollowState::Arrived);
    assert_eq!(transfers(&shop, &order).len(), 1);
    assert_eq!(shop.value("SELECT count(*) FROM transfers_tb"), "2");
    shop.stop();
}
