//! `serve --dev --chain`: a chain and a node with a signer beside the service.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::node::service;
use super::{SIGNER, payment};
use crate::harness::{Chain, Request, Server, Site, eventually, send};

/// The first child of a process with this word in its command line.
fn child(parent: u32, word: &str) -> Option<Pid> {
    let of = |entry: io::Result<fs::DirEntry>| {
        let list = fs::read_to_string(entry.ok()?.path().join("children")).ok()?;
        Some(list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
    };
    let children = fs::read_dir(format!("/proc/{parent}/task")).ok()?.filter_map(of).flatten();
    let has_word = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    };
    children.into_iter().find(has_word).and_then(Pid::from_raw)
}

fn paid(node: SocketAddr, request_id: &str) {
    let (token, body) = (service(&[SIGNER], None), payment(request_id));
    eventually("a node that takes it", || {
        let request = Request { body: Some(&body), ..Request::new(&token, "POST", "/api/v1/tx") };
        let reply = send(node, &request).ok()?;
        [200, 202].contains(&reply.status).then_some(())
    });
}

fn ended(node: SocketAddr, request_id: &str) -> Value {
    let token = service(&[SIGNER], None);
    let path = format!("/api/v1/tx/by-request?signer={SIGNER:#x}&requestId={request_id}");
    eventually("its end", || {
        let reply = send(node, &Request::new(&token, "GET", &path)).ok()?;
        Some(reply.json()).filter(|row| row["final"] == true)
    })
}

/// Goal: a stranger's chain and node live as long as their server. Method: a payment goes to its
/// end; the node is killed and comes back at the same address; the server is killed without a
/// chance to clean up, and both are gone; its successor has the same chain.
#[test]
fn the_test_chain_lives_as_long_as_its_server() {
    let any = "127.0.0.1:0";
    let site = Site::new().with("UBSCORE__TXM__LISTEN", any).with("UBSCORE__TXM__OPS_LISTEN", any);
    let start = || {
        let mut command = site.command();
        command.arg("--chain").env("UBSCORE_ANVIL", Chain::program());
        Server::start(command)
    };
    let server = start();
    let [rpc, node] = server.chain.expect("a chain");
    paid(node, "a-1");
    assert_eq!(ended(node, "a-1")["state"], "CONFIRMED");

    let pid = eventually("the node's process", || child(server.pid(), "txm"));
    kill_process(pid, Signal::KILL).expect("our grandchild");
    server.says("the node of the test chain has ended");
    paid(node, "a-2");
    assert_eq!(ended(node, "a-2")["nonce"], 1);

    server.kill();
    for address in [rpc, node] {
        eventually("its end", || TcpStream::connect(address).is_err().then_some(()));
    }
    let server = start();
    let [_, node] = server.chain.expect("a chain");
    assert_eq!(ended(node, "a-1")["state"], "CONFIRMED");
    paid(node, "a-3");
    assert_eq!(ended(node, "a-3")["nonce"], 2);
    server.stop();
}
