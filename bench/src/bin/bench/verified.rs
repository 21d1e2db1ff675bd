//! Shows the verifier's counts next to the recorded ones, and records them.

use std::{fs, path::Path};

use crate::verifier::{self, PATH, Row};

/// Shows the counts. With `write` it puts those of the running kernel into the file and keeps those of other kernels.
pub fn show(write: bool) {
    let measured = verifier::measure();
    let recorded = if Path::new(PATH).exists() { verifier::recorded() } else { Vec::new() };
    println!("{:14}  {:22}  {:>12}  {:>12}", "mode", "program", "instructions", "recorded");
    for row in &measured {
        let before = recorded.iter().find(|old| is_same(old, row));
        let before = before.map_or_else(|| "-".to_owned(), |old| old.instructions.to_string());
        println!("{:14}  {:22}  {:>12}  {before:>12}", row.mode, row.program, row.instructions);
    }
    if write {
        let kernel = measured.first().map(|row| row.kernel.clone());
        let others = recorded.into_iter().filter(|row| Some(&row.kernel) != kernel.as_ref());
        let text = verifier::format(others.chain(measured).collect());
        fs::write(PATH, text).unwrap_or_else(|error| panic!("{PATH}: {error}"));
        println!("recorded in tests/verifier-instructions.tsv");
    }
}

fn is_same(a: &Row, b: &Row) -> bool {
    (&a.kernel, &a.mode, &a.program) == (&b.kernel, &b.mode, &b.program)
}
