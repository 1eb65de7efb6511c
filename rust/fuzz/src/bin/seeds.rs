//! Writes the seeds of every target into a folder each: `seeds FOLDER`.

use std::fs;
use std::path::PathBuf;

use foreword_fuzz::{seeds, targets};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("a folder to write to"));
    let fixtures = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures"));
    for (target, _) in targets::ALL {
        let own = folder.join(target);
        fs::create_dir_all(&own)?;
        for (number, seed) in seeds::of(target, &fixtures).iter().enumerate() {
            fs::write(own.join(format!("{number:04}")), seed)?;
        }
    }
    Ok(())
}
