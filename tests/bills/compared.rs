use std::thread;

use super::*;

/// Goal: a plan does not wait behind another comparison: these read millions of lines, one at a
/// time. Method: both wait for a lock on the lines.
#[test]
fn one_comparison_runs_at_a_time() {
    let books = Billing::new();
    books.credited("card", "a", day(3));
    books.reconciles("card", day(3), &json!({}));
    let plan = json!({"day": day(3).to_string(), "apply": false, "reason": "a test"});
    let plans = || books.post("channels/card/reconcile", &plan);
    let held = books.desk.site.session();
    eventually("a plan beside a comparison", || {
        held.sql("BEGIN; LOCK TABLE channel_bill_lines IN ACCESS EXCLUSIVE MODE");
        let both = thread::scope(|scope| {
            [scope.spawn(plans), scope.spawn(plans)].map(|plan| plan.join().expect("no panic"))
        });
        held.sql("ROLLBACK");
        let under_way = |reply: &Reply| {
            let message = reply.json()["message"].to_string();
            message.contains("A comparison of bills is under way")
        };
        assert!(both.iter().all(|reply| reply.status == 503), "{both:?}");
        both.iter().any(under_way).then_some(())
    });
    let free = eventually("a plan", || Some(plans()).filter(|reply| reply.status == 200));
    assert_eq!(free.json()["bill"]["day"], json!(day(3).to_string()));
    books.is_whole();
}
