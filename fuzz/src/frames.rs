use bytes::BytesMut;
use stream::block::LegRow;
use stream::frame::cutter;
use stream::leg::posting;
use stream::message::Message;
use tokio_util::codec::Decoder;

/// How a byte stream is cut into two reads, and the stream itself: it is cut into the same frames
/// as in one read, and each message among them is written again as the same bytes.
pub fn check(bytes: &[u8]) {
    let mut recipe = super::Recipe::new(bytes);
    let first = recipe.short();
    let stream = recipe.take(usize::MAX);
    let (frames, sound) = cut(&[stream]);
    let (begin, end) = stream.split_at(first.min(stream.len()));
    assert_eq!(cut(&[begin, end]), (frames.clone(), sound));
    for frame in frames {
        let Ok(message) = Message::read(&frame) else { continue };
        let mut written = BytesMut::new();
        message.append_to(&mut written);
        assert_eq!(cut(&[&written]), (vec![frame.clone()], true), "{message:?}");
        if let Message::Settle(_, rows) | Message::Post(_, rows) = message {
            check_legs(rows);
        }
    }
}

/// The frames of a byte stream that comes in these reads, and whether each of them can be cut.
fn cut(reads: &[&[u8]]) -> (Vec<BytesMut>, bool) {
    let (mut cutter, mut input, mut frames) = (cutter(), BytesMut::new(), Vec::new());
    for read in reads {
        input.extend_from_slice(read);
        loop {
            match cutter.decode(&mut input) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, false),
            }
        }
    }
    (frames, true)
}

/// A posting holds every leg or none, and each leg returns from its row.
fn check_legs(rows: &[LegRow]) {
    let legs = posting(rows);
    assert!(legs.is_empty() || legs.len() == rows.len());
    for leg in legs {
        let row = LegRow::from(leg);
        let again = row.leg().expect("a row of our own");
        assert_eq!(LegRow::from(again), row, "{leg:?}");
    }
}
