//! Requests to the hardware: memory in huge pages, and bytes ahead of their use. This is the only
//! `unsafe` code of the crate.

use std::mem::size_of_val;

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Asks the system for huge pages under `memory`, as far as it fills whole pages and is untouched.
/// Without huge pages nothing changes.
pub(super) fn prefer_huge<T>(memory: &mut [T]) {
    let page = page_size();
    let skipped = memory.as_ptr().addr().next_multiple_of(page) - memory.as_ptr().addr();
    let Some(bytes) = size_of_val(memory).checked_sub(skipped) else { return };
    let start = memory.as_mut_ptr().cast::<u8>().wrapping_add(skipped);
    // SAFETY: the range lies within `memory`, which is borrowed meanwhile, and this advice changes
    // no byte. A kernel without huge pages returns an error, and nothing is lost.
    unsafe { madvise(start.cast(), bytes / page * page, Advice::LinuxHugepage) }.ok();
}

/// Prefetches a value's first cache line. It does not wait for it. A processor without such an
/// instruction does nothing.
#[inline]
pub(super) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint reads nothing that the program can observe, and the address is a value's.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
