use ubscore::postgres::flight::entries::{decode, encode};

/// A shard and a flight, and the bytes of a row's entries without their checksum: they are entries
/// that can be written and read again, or are refused.
pub fn check(bytes: &[u8]) {
    let mut recipe = super::Recipe::new(bytes);
    let (shard, flight) = (u32::from(recipe.byte()), u64::from(recipe.byte()));
    let body = recipe.take(usize::MAX);
    // As they are: a checksum that is right by chance is as good.
    drop(decode(shard, flight, body));
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&shard.to_le_bytes());
    hasher.update(&flight.to_le_bytes());
    hasher.update(body);
    let row = [body, &hasher.finalize().to_le_bytes()].concat();
    let Ok(entries) = decode(shard, flight, &row) else { return };
    assert_eq!(decode(shard, flight, &encode(shard, flight, &entries)), Ok(entries));
}
