#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ubscore_fuzz::channel::wechat(bytes));
