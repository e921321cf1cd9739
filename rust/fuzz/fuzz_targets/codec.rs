//! See `deltawire_fuzz::codec`. Without cargo-fuzz: runs the files named as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| deltawire_fuzz::codec(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        deltawire_fuzz::codec(&std::fs::read(path)?);
        Ok(())
    })
}
