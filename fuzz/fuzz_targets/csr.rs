#![no_main]

use fuzz::properties::csr;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = csr::check(&csr::request(input));
});
