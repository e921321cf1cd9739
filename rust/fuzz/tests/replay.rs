//! Every target over the golden files, the inputs that once broke something, and what the writer makes.

use std::fs;
use std::path::Path;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let vectors = here.join("../../spec/vectors");
    let folders = [
        vectors.join("good"),
        vectors.join("bad"),
        vectors.join("native"),
        here.join("seeds"),
    ];
    let mut files = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(&folder).expect("the folder is part of the repository") {
            let path = entry.expect("a readable folder").path();
            if path.is_file() {
                files.push((
                    path.display().to_string(),
                    fs::read(&path).expect("a readable file"),
                ));
            }
        }
    }
    files.extend(deltawire_fuzz::made());
    files.sort();
    assert!(files.len() > 300);
    files
}

fn replay(target: fn(&[u8])) {
    for (name, data) in corpus() {
        // The harness prints the name of the file that panics.
        println!("{name}");
        target(&data);
    }
}

#[test]
fn stream() {
    replay(deltawire_fuzz::stream);
}

#[test]
fn sealed() {
    replay(deltawire_fuzz::sealed);
}

#[test]
fn codec() {
    replay(deltawire_fuzz::codec);
}

#[test]
fn round_trip() {
    replay(deltawire_fuzz::round_trip);
}

#[test]
fn apply() {
    replay(deltawire_fuzz::apply);
}

/// Damage in every byte of some small files, with right checksums.
#[test]
fn sealed_with_every_byte_altered() {
    let kinds = ["good/codec", "good/classes", "made/few", "made/scattered"];
    for (name, data) in corpus() {
        if data.len() > 400 || !kinds.iter().any(|kind| name.contains(kind)) {
            continue;
        }
        for at in 0..data.len() {
            let mut spoiled = data.clone();
            spoiled[at] ^= [1, 0x80, 0xff][(at + name.len()) % 3];
            deltawire_fuzz::sealed(&spoiled);
            deltawire_fuzz::apply(&spoiled);
        }
    }
}
