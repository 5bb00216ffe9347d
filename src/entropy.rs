//! Randomness as a value that is passed in. Only this file draws random numbers.
//!
//! Ids and the jitter of back-off come from an [`Entropy`], so that a simulation can replay a run
//! from its seed.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// The source of random numbers: the kernel in production, a seed in the simulation.
pub trait Entropy: Send + 'static {
    /// 64 random bits.
    fn u64(&mut self) -> u64;

    /// 128 random bits: enough for an id that cannot be guessed and never repeats.
    fn u128(&mut self) -> u128 {
        (u128::from(self.u64()) << u64::BITS) | u128::from(self.u64())
    }
}

/// Bytes that are drawn at once: 16 ids. The kernel returns up to 256 bytes whole or not at all
/// (getrandom(2)).
const DRAWN_BYTES: usize = 256;

/// The kernel's generator. Numbers are drawn some at a time, so that few ids cost a system call.
///
/// Not the `rand` crate: a copy of a generator's state repeats every later number. Here only the
/// drawn numbers can be copied, by a core dump, a fork or a restored machine. The process forks
/// only to execute another program, and each id of a transfer or request begins with its time.
///
/// There is no `Clone`: the copy would repeat the drawn numbers.
pub struct SystemEntropy {
    drawn: [u8; DRAWN_BYTES],
    /// Bytes of `drawn` that have been given out.
    used: usize,
}

impl Default for SystemEntropy {
    fn default() -> Self {
        Self { drawn: [0; DRAWN_BYTES], used: DRAWN_BYTES }
    }
}

impl SystemEntropy {
    /// The next bytes; none is given out twice.
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        const { assert!(N <= DRAWN_BYTES) };
        if DRAWN_BYTES - self.used < N {
            self.draw();
        }
        let (from, until) = (self.used, self.used + N);
        self.used = until;
        self.drawn[from..until].try_into().expect("a slice of N bytes")
    }

    fn draw(&mut self) {
        loop {
            match getrandom(&mut self.drawn, GetRandomFlags::empty()) {
                Ok(count) => {
                    assert_eq!(count, DRAWN_BYTES, "getrandom gave {count} bytes");
                    self.used = 0;
                    return;
                }
                // A signal arrived before the pool was seeded, soon after the machine's start.
                Err(Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random numbers: {error}"),
            }
        }
    }
}

impl Entropy for SystemEntropy {
    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.bytes())
    }

    fn u128(&mut self) -> u128 {
        u128::from_ne_bytes(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn wide_numbers_use_both_halves_in_order() {
        struct Counting(u64);
        impl Entropy for Counting {
            fn u64(&mut self) -> u64 {
                self.0 += 1;
                self.0
            }
        }
        assert_eq!(Counting(0).u128(), (1 << 64) | 2);
    }

    #[test]
    fn the_kernel_does_not_repeat_itself() {
        let mut entropy = SystemEntropy::default();
        let narrow: HashSet<u64> = (0..1_000).map(|_| entropy.u64()).collect();
        let wide: HashSet<u128> = (0..1_000).map(|_| entropy.u128()).collect();
        assert_eq!((narrow.len(), wide.len()), (1_000, 1_000));
    }

    /// Goal: each drawn byte is given out once, also around the end of the drawn ones. Method: two
    /// sources, numbers of both widths in turns, so that a wide one often does not fit any more.
    #[test]
    fn no_drawn_byte_is_given_out_twice() {
        let mut sources = [SystemEntropy::default(), SystemEntropy::default()];
        let mut halves = HashSet::new();
        for round in 0..1_000 {
            for source in &mut sources {
                let wide = source.u128().to_ne_bytes();
                let (one, two) = wide.split_at(8);
                halves.extend([one, two].map(|half| half.to_vec()));
                if round % 3 == 0 {
                    halves.insert(source.u64().to_ne_bytes().to_vec());
                }
                assert!(source.used <= DRAWN_BYTES, "{} bytes are used", source.used);
            }
        }
        assert_eq!(halves.len(), 2 * (2 * 1_000 + 334));
    }
}
