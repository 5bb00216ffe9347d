use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::BytesMut;
use domain::code::Code;
use serde_json::{Value, json};
use stream::block::{
    Acknowledge, Answer, Back, BackReason, Balance, Close, CloseReason, HoldRow, HoldsPart, LegRow,
    NO_LEG, Open, Opened, ReadBalance, ReadHolds, Release, Reserve, Set, TOKEN_BYTES,
};
use stream::frame::cutter;
use stream::message::{HOLDS_MAX, LEGS_MAX, Message};
use tokio_util::codec::Decoder;

const ALL: u64 = u64::MAX;

/// The contract.
fn schema() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/stream.sbe.xml")
}

/// A Python with the package `sbe`, where `make test` installs it, unless the environment names
/// another.
fn python() -> PathBuf {
    let fixed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/sbe/bin/python");
    let path = env::var_os("SBE_PYTHON").map_or_else(fixed, PathBuf::from);
    let place = path.display();
    assert!(
        path.is_file(),
        "the package sbe is missing: no {place}; `make test` installs it there"
    );
    path
}

/// The other implementation's frames for messages, and its messages for frames.
fn ask_peer(encode: &[Value], decode: &[Vec<u8>]) -> (Vec<String>, Vec<Value>) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stream/peer.py");
    let mut command = Command::new(python());
    command.arg(script).arg(schema()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let mut child = command.spawn().expect("python");
    let decode: Vec<String> = decode.iter().map(|frame| hex(frame)).collect();
    let asked = json!({"encode": encode, "decode": decode}).to_string();
    child.stdin.take().expect("piped").write_all(asked.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |frame: &Value| frame.as_str().expect("hex").to_owned();
    let encoded = said["encoded"].as_array().expect("frames").iter().map(text).collect();
    (encoded, said["decoded"].as_array().expect("messages").clone())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn framed(message: &Message<'_>) -> Vec<u8> {
    let mut out = BytesMut::new();
    message.append_to(&mut out);
    out.to_vec()
}

/// One message: its name and fields by the schema, and its frame by our code.
type Case = (Value, Vec<u8>);

fn leg(number: u64, kind: u8, name: &str) -> (LegRow, Value) {
    let row = LegRow {
        from: number.into(),
        to: (number + 1).into(),
        // All that is left has a null in the schema.
        amount: (ALL - number).into(),
        asset: 7.into(),
        from_kind: kind,
        to_kind: 1,
        purpose: 65_535.into(),
    };
    let fields = json!({
        "from": number, "to": number + 1, "amount": (number > 0).then_some(ALL - number), "asset": 7, "fromKind": name,
        "toKind": "AVAILABLE", "purpose": 65_535,
    });
    (row, fields)
}

/// Every message that a venue sends; each field has a value of its own.
fn of_venues() -> Vec<Case> {
    let mut token = [0; TOKEN_BYTES];
    token[..5].copy_from_slice(b"a.b.c");
    let open = Open { epoch: 1.into(), told: 2.into(), venue: u32::MAX.into(), token };
    let reserve = Reserve {
        number: 1.into(),
        reference: 9.into(),
        user: 1001.into(),
        amount: 5.into(),
        onto: 6.into(),
        asset: 3.into(),
    };
    let set = Set { number: 8.into(), reference: 9.into() };
    let kinds = [(0, "OUTSIDE"), (1, "AVAILABLE"), (2, "FROZEN"), (3, "HOLD")];
    let (rows, legs): (Vec<_>, Vec<_>) =
        (0..LEGS_MAX as u64).zip(kinds.into_iter().cycle()).map(|(n, k)| leg(n, k.0, k.1)).unzip();
    let release =
        Release { number: 1.into(), reference: 2.into(), hold: 3.into(), amount: ALL.into() };
    let (acknowledge, holds) = (Acknowledge { number: 4.into() }, ReadHolds { after: 5.into() });
    let balance = ReadBalance { user: 1.into(), asset: 2.into() };
    vec![
        (
            json!(["Open", {"epoch": 1, "told": 2, "venue": u32::MAX, "token": "a.b.c"}]),
            framed(&Message::Open(&open)),
        ),
        (
            json!(["Reserve", {"number": 1, "reference": 9, "user": 1001, "amount": 5, "onto": 6, "asset": 3}]),
            framed(&Message::Reserve(&reserve)),
        ),
        (
            json!(["Settle", {"number": 8, "reference": 9, "legs": legs}]),
            framed(&Message::Settle(&set, &rows)),
        ),
        (
            json!(["Post", {"number": 8, "reference": 9, "legs": legs[..1]}]),
            framed(&Message::Post(&set, &rows[..1])),
        ),
        (
            json!(["Release", {"number": 1, "reference": 2, "hold": 3, "amount": null}]),
            framed(&Message::Release(&release)),
        ),
        (json!(["Acknowledge", {"number": 4}]), framed(&Message::Acknowledge(&acknowledge))),
        (json!(["ReadHolds", {"after": 5}]), framed(&Message::ReadHolds(&holds))),
        (json!(["ReadBalance", {"user": 1, "asset": 2}]), framed(&Message::ReadBalance(&balance))),
        (json!(["Alive", {}]), framed(&Message::Alive)),
    ]
}

/// Every message that ubscore sends, with every code and reason.
fn of_ubscore() -> Vec<Case> {
    let opened = Opened {
        epoch: 1.into(),
        last: 2.into(),
        acknowledged: 3.into(),
        durable: 4.into(),
        log: (5_u128 << 64 | 6).into(),
        window: 65_536.into(),
    };
    let hold = |number: u64| HoldRow {
        number: number.into(),
        reference: 2.into(),
        user: 3.into(),
        remaining: ALL.into(),
        record: 5.into(),
        asset: 6.into(),
    };
    let holds: Vec<HoldRow> = (0..HOLDS_MAX as u64).map(hold).collect();
    let row = |number: u64| {
        json!({
            "number": number, "reference": 2, "user": 3, "remaining": ALL, "record": 5, "asset": 6,
        })
    };
    let rows: Vec<Value> = (0..HOLDS_MAX as u64).map(row).collect();
    let (position, balance) = (
        HoldsPart { position: 9.into(), follows: 1 },
        Balance { available: 1.into(), held: (u128::MAX - 1).into(), position: 3.into() },
    );
    let mut cases = vec![
        (
            json!(["Opened", {
                "epoch": 1, "last": 2, "acknowledged": 3, "durable": 4,
                "log": {"low": 6, "high": 5}, "window": 65_536,
            }]),
            framed(&Message::Opened(&opened)),
        ),
        (
            json!(["Holds", {"position": 9, "follows": "TRUE", "holds": rows}]),
            framed(&Message::Holds(&position, &holds)),
        ),
        (
            json!(["Holds", {"position": 9, "follows": "TRUE", "holds": []}]),
            framed(&Message::Holds(&position, &[])),
        ),
        (
            json!(["Balance", {
                "available": {"low": 1, "high": 0}, "held": {"low": ALL - 1, "high": ALL}, "position": 3,
            }]),
            framed(&Message::Balance(&balance)),
        ),
    ];
    let codes = [(0, "SUCCESS")].into_iter();
    for (code, name) in codes.chain(Code::of_service().map(|code| (code as u16, code.name()))) {
        let (leg, cell) = if code == 0 { (NO_LEG, Value::Null) } else { (15, json!(15)) };
        let answer = Answer { number: 1.into(), record: 2.into(), code: code.into(), leg };
        cases.push((
            json!(["Answer", {"number": 1, "record": 2, "code": name, "leg": cell}]),
            framed(&Message::Answer(&answer)),
        ));
    }
    for reason in BackReason::ALL {
        let back = Back { number: 1.into(), after_ms: 2.into(), reason: *reason as u8 };
        cases.push((
            json!(["Back", {"number": 1, "afterMs": 2, "reason": reason.name()}]),
            framed(&Message::Back(&back)),
        ));
    }
    for reason in CloseReason::ALL {
        cases.push((
            json!(["Close", {"reason": reason.name()}]),
            framed(&Message::Close(&Close { reason: *reason as u8 })),
        ));
    }
    cases
}

/// Goal: a client that is made from the schema alone understands every message, and is understood.
/// Method: each message with each field, code and reason, written and read by both sides.
#[test]
fn another_implementation_of_the_schema_agrees_in_every_byte() {
    let cases = [of_venues(), of_ubscore()].concat();
    let (messages, frames): (Vec<Value>, Vec<Vec<u8>>) = cases.into_iter().unzip();
    let (encoded, decoded) = ask_peer(&messages, &frames);
    assert_eq!((encoded.len(), decoded.len()), (frames.len(), messages.len()));
    for (((message, frame), encoded), decoded) in
        messages.iter().zip(&frames).zip(&encoded).zip(&decoded)
    {
        assert_eq!((&hex(frame), message), (encoded, decoded));
        let mut buffer = BytesMut::from(&frame[..]);
        let cut = cutter().decode(&mut buffer).expect("a frame").expect("a whole one");
        let read = Message::read(&cut).expect("a message");
        assert_eq!(framed(&read), *frame, "{message}");
    }
    let names: Vec<&Value> = messages.iter().map(|message| &message[0]).collect();
    let text = std::fs::read_to_string(schema()).expect("the schema");
    for part in text.split("<sbe:message name=\"").skip(1) {
        let name = part.split('"').next().expect("a name");
        assert!(names.contains(&&json!(name)), "{name} has no case");
    }
    let codes = text.split("<enum name=\"Code\"").nth(1).expect("the codes");
    let codes = codes.split("</enum>").next().expect("their end");
    assert_eq!(codes.matches("<validValue").count(), Code::of_service().count() + 1);
}
