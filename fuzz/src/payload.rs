use engine::entry::Entry;
use engine::fact::{FACT_BYTES_MAX, Fact};
use engine::record::PAYLOAD_BYTES_MAX;

/// A kind or tag, and the bytes of one payload and of one fact.
pub fn check(bytes: &[u8]) {
    let Some((&kind, payload)) = bytes.split_first() else { return };
    check_entry(kind, payload);
    check_fact(kind, payload);
}

/// A readable payload is written again as the same bytes: nothing in the log has two spellings.
pub(super) fn check_entry(kind: u8, payload: &[u8]) {
    let Ok(entry) = Entry::decode(kind, payload) else { return };
    let mut buffer = [0; PAYLOAD_BYTES_MAX];
    let length = entry.encode(&mut buffer);
    assert_eq!((entry.kind() as u8, &buffer[..length]), (kind, payload), "{entry:?}");
    assert_eq!(Entry::decode(kind, &buffer[..length]), Ok(entry));
}

/// The same for a fact, with the tag's number of bytes.
fn check_fact(tag: u8, bytes: &[u8]) {
    let Some(length) = Fact::bytes_of(tag) else {
        assert!(Fact::decode(tag, bytes).is_err(), "tag {tag}");
        return;
    };
    if bytes.len() != length {
        assert!(Fact::decode(tag, bytes).is_err(), "{} bytes of {length}", bytes.len());
    }
    let Some(bytes) = bytes.get(..length) else { return };
    let Ok(fact) = Fact::decode(tag, bytes) else { return };
    let mut buffer = [0; FACT_BYTES_MAX];
    let written = fact.encode(&mut buffer);
    assert_eq!((written.0, &buffer[..written.1]), (tag, bytes), "{fact:?}");
    assert_eq!(Fact::decode(tag, &buffer[..length]), Ok(fact));
    fact.digest();
}
