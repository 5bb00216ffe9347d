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

/// The kernel's generator, called for each number.
///
/// Not the `rand` crate: a few numbers for each transfer need no generator in user space. Such a
/// generator must be reseeded after a fork and can be read from a core dump.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl SystemEntropy {
    fn bytes<const N: usize>() -> [u8; N] {
        let mut bytes = [0; N];
        loop {
            match getrandom(&mut bytes, GetRandomFlags::empty()) {
                // Up to 256 bytes are returned whole or not at all (getrandom(2)).
                Ok(count) => {
                    assert_eq!(count, N, "getrandom gave {count} of {N} bytes");
                    return bytes;
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
        u64::from_ne_bytes(Self::bytes())
    }

    fn u128(&mut self) -> u128 {
        u128::from_ne_bytes(Self::bytes())
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
        let mut entropy = SystemEntropy;
        let narrow: HashSet<u64> = (0..1_000).map(|_| entropy.u64()).collect();
        let wide: HashSet<u128> = (0..1_000).map(|_| entropy.u128()).collect();
        assert_eq!((narrow.len(), wide.len()), (1_000, 1_000));
    }
}
