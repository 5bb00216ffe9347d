//! What the hardware is asked for: memory in huge pages, and bytes before they are needed. The crate's only `unsafe`.

use std::mem::size_of_val;

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Asks the system to lay `memory` out in huge pages, as far as it fills whole pages and has not been touched yet. Where
/// there are none, nothing changes.
pub(super) fn prefer_huge<T>(memory: &mut [T]) {
    let page = page_size();
    let skipped = memory.as_ptr().addr().next_multiple_of(page) - memory.as_ptr().addr();
    let Some(bytes) = size_of_val(memory).checked_sub(skipped) else { return };
    let start = memory.as_mut_ptr().cast::<u8>().wrapping_add(skipped);
    // SAFETY: the range lies within `memory`, which is borrowed for as long as this takes, and this advice changes no byte.
    // A kernel without huge pages refuses; nothing is lost by that.
    unsafe { madvise(start.cast(), bytes / page * page, Advice::LinuxHugepage) }.ok();
}

/// Has a value's first cache line on its way to the core by the time it is read. Nothing waits for it; where the processor
/// has no such instruction, nothing happens.
#[inline]
pub(super) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint reads nothing as far as the program can tell, and the address is that of a value.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
