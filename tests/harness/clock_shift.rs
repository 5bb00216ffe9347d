//! Machines with a wrong clock: a small library for `LD_PRELOAD` that moves the time of day of one
//! process, and not its monotonic clock.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::run_directory;

/// The variable with the seconds to add.
pub(crate) const CLOCK_SHIFT: &str = "UBSCORE_TEST_CLOCK_S";

/// The source of the library. It asks the system itself: the function that it replaces is its own.
const SOURCE: &str = r#"
use std::ffi::{c_char, c_int, c_long};

#[repr(C)]
pub struct Time {
    seconds: c_long,
    nanoseconds: c_long,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn atol(text: *const c_char) -> c_long;
}

const REALTIME: c_int = 0;
#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: c_long = 113;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Time) -> c_int {
    unsafe {
        if syscall(CLOCK_GETTIME, clock as c_long, time) != 0 {
            return -1;
        }
        if clock == REALTIME {
            let shift = getenv(c"UBSCORE_TEST_CLOCK_S".as_ptr());
            if !shift.is_null() {
                (*time).seconds += atol(shift);
            }
        }
    }
    0
}
"#;

/// The library's file, built once a run by the compiler of these tests.
pub(crate) fn clock_library() -> &'static Path {
    static LIBRARY: OnceLock<std::path::PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = run_directory("clock");
        fs::create_dir_all(&directory).expect("a directory");
        let (source, library) = (directory.join("clock.rs"), directory.join("libclock.so"));
        fs::write(&source, SOURCE).expect("written");
        let built = Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()))
            .args(["--crate-type", "cdylib", "--edition", "2024", "-O", "-o"])
            .args([&library, &source])
            .output()
            .expect("rustc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        library
    })
}
