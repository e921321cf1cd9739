//! See `deltawire_fuzz::round_trip`. Without cargo-fuzz: runs the files named as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| deltawire_fuzz::round_trip(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        deltawire_fuzz::round_trip(&std::fs::read(path)?);
        Ok(())
    })
}
