#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| foreword_fuzz::targets::http1(data));
