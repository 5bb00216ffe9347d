use domain::code::Code;
use domain::transfer::Decision;

use super::*;

#[test]
fn a_fact_reads_back_as_written() {
    let recorded = Recorded {
        user: 7,
        asset: 3,
        amount: 5,
        decision: Decision::Refused(Code::InsufficientBalance),
        balance_after: u128::MAX,
        sequence: 9,
        time_ns: 11,
        order_number: 13,
    };
    for fact in [
        Fact::Asset { asset: 3, precision: 8, symbol: Text::new("USDT").expect("short") },
        Fact::Account { user: 7, status: AccountStatus::Frozen },
        Fact::Balance {
            user: 7,
            asset: 3,
            available: u128::MAX,
            held: 0,
            traded: 0,
            totals: Totals { deposits: 1 << 100, withdrawals: 2 << 100, refunds: 3 << 100 },
        },
        Fact::Outcome { req_id: u128::MAX, op: Op::Refund, recorded },
        Fact::Watermark { order_number: u64::MAX },
        Fact::Evicted { digest: u128::MAX - 1 },
        Fact::Outside {
            asset: 3,
            outside: Outside { deposits: 1, deposited: 1 << 90, withdrawals: 2, withdrawn: 7 },
        },
    ] {
        let mut buffer = [0; FACT_BYTES_MAX];
        let (tag, length) = fact.encode(&mut buffer);
        assert_eq!(Fact::bytes_of(tag), Some(length));
        assert_eq!(Fact::decode(tag, &buffer[..length]), Ok(fact));
    }
}

/// The forms of the facts of venues, tags 8 to 11, field by field.
#[test]
fn the_bytes_of_the_facts_of_venues_stay_what_they_are() {
    let name = Text::new("book").expect("short");
    let totals = Totals { deposits: 0x21, withdrawals: 0x22, refunds: 0x23 };
    let long = |byte: u8, bytes: usize| -> Vec<u8> {
        [byte].into_iter().chain(std::iter::repeat(0)).take(bytes).collect()
    };
    let joined = |parts: &[(u8, usize)]| -> Vec<u8> {
        parts.iter().flat_map(|(byte, bytes)| long(*byte, *bytes)).collect()
    };
    let balance = Fact::Balance { user: 7, asset: 3, available: 1, held: 4, traded: -2, totals };
    let mut traded = joined(&[(1, 16), (0x21, 16), (0x22, 16), (0x23, 16), (7, 8), (3, 4)]);
    traded.extend(long(4, 16));
    traded.extend((-2_i128).to_le_bytes());
    let hold = HoldFact {
        venue: 9,
        transaction: 0,
        number: 8,
        purpose: 0,
        user: 7,
        asset: 3,
        amount: 4,
        reference: 5,
        record: 6,
        time_ns: 2,
        keeps: true,
    };
    let held =
        joined(&[(4, 16), (8, 8), (7, 8), (5, 8), (6, 8), (2, 8), (9, 4), (3, 4), (0, 2), (1, 1)]);
    let venue = VenueFact { id: 9, epoch: 3, acknowledged: 2, closed: true, posts: true, name };
    let mut registered = joined(&[(3, 8), (2, 8), (9, 4), (3, 1), (4, 1)]);
    registered.extend(b"book");
    registered.resize(registered.len() + VENUE_NAME_BYTES_MAX - 4, 0);
    let decision = Decision::Refused(Code::InsufficientBalance);
    let answer = AnswerFact { venue: 9, number: 8, hash: 1, record: 6, decision, leg: 2 };
    let answered = joined(&[(8, 8), (1, 8), (6, 8), (9, 4), (24, 2), (2, 1)]);
    for (fact, tag, want) in [
        (balance, 8, traded),
        (Fact::Hold(hold), 9, held),
        (Fact::Venue(venue), 10, registered),
        (Fact::Answer(answer), 11, answered),
    ] {
        let mut buffer = [0; FACT_BYTES_MAX];
        let (found, length) = fact.encode(&mut buffer);
        assert_eq!((found, &buffer[..length]), (tag, &want[..]), "{fact:?}");
        assert_eq!(Fact::decode(tag, &want), Ok(fact));
    }
    // Of a later version.
    assert_eq!(Fact::bytes_of(16), None);
    let unknown = Error::Field { field: "fact tag", number: 16 };
    assert_eq!(Fact::decode(16, &[]), Err(unknown));
}

/// The forms of the facts of transactions, tags 12 to 15, field by field.
#[test]
fn the_bytes_of_the_facts_of_transactions_stay_what_they_are() {
    let hold = HoldFact {
        venue: 0,
        transaction: 0x11,
        number: 2,
        purpose: 0,
        user: 7,
        asset: 3,
        amount: 4,
        reference: 0,
        record: 6,
        time_ns: 5,
        keeps: false,
    };
    let long = |byte: u8, bytes: usize| -> Vec<u8> {
        [byte].into_iter().chain(std::iter::repeat(0)).take(bytes).collect()
    };
    let joined = |parts: &[(u8, usize)]| -> Vec<u8> {
        parts.iter().flat_map(|(byte, bytes)| long(*byte, *bytes)).collect()
    };
    let held = joined(&[(0x11, 16), (2, 8), (4, 8), (7, 8), (6, 8), (5, 8), (3, 4)]);
    let frozen = HoldFact { purpose: 9, ..hold };
    let mut apart = [&held[..], &[9, 0]].concat();
    let named = NamedFact {
        transaction: 0x11,
        op: Op::Reserve,
        round: 2,
        hash: 0x12,
        reference: 7,
        record: 6,
        time_ns: 5,
        order_number: 13,
        decision: Decision::Refused(Code::InsufficientBalance),
        leg: 3,
        kept: Kept { accounts: 8, balances: 9, freezes: 2, outcomes: 1 },
    };
    let mut decided = joined(&[(0x11, 16), (0x12, 16), (7, 8), (6, 8), (5, 8), (13, 8), (24, 2)]);
    decided.extend([6, 2, 3, 8, 9, 2, 1]);
    for (fact, tag, want) in [
        (Fact::Named(named), 12, decided),
        (Fact::Hold(hold), 13, held),
        (Fact::Hold(frozen), 15, apart.clone()),
    ] {
        let mut buffer = [0; FACT_BYTES_MAX];
        let (found, length) = fact.encode(&mut buffer);
        assert_eq!((found, &buffer[..length]), (tag, &want[..]), "{fact:?}");
        assert_eq!(Fact::decode(tag, &want), Ok(fact));
    }
    apart[60] = 0;
    let without = Error::Field { field: "fact tag", number: 15 };
    assert_eq!(Fact::decode(15, &apart), Err(without), "that is of tag 13");
    assert!(Fact::decode(13, &[0; 60]).is_err(), "no transaction");
    let crossed = [&(-2_i128).to_le_bytes()[..], &3_u32.to_le_bytes()].concat();
    assert_eq!(Fact::decode(14, &crossed), Ok(Fact::Crossed { asset: 3, brought: -2 }));
    let mut buffer = [0; FACT_BYTES_MAX];
    let (tag, length) = Fact::Crossed { asset: 3, brought: -2 }.encode(&mut buffer);
    assert_eq!((tag, &buffer[..length]), (14, &crossed[..]));
    assert!(Fact::decode(14, &[0; 20]).is_err(), "a sum of 0 has no fact");
}

/// Found by a fuzz target: bytes after a symbol were ignored, so one fact had several forms.
#[test]
fn a_symbol_is_padded_with_zeros_and_nothing_else() {
    let mut buffer = [0; FACT_BYTES_MAX];
    let symbol = Text::new("USDT").expect("short");
    let (tag, length) = Fact::Asset { asset: 3, precision: 8, symbol }.encode(&mut buffer);
    buffer[length - 1] = b'x';
    let malformed = Error::Field { field: "fact tag", number: tag.into() };
    assert_eq!(Fact::decode(tag, &buffer[..length]), Err(malformed));
}
