//! See `deltawire_fuzz::stream`. Without cargo-fuzz: runs the files named as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| deltawire_fuzz::stream(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        deltawire_fuzz::stream(&std::fs::read(path)?);
        Ok(())
    })
}
