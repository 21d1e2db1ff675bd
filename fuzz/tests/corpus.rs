//! Every decoder survives its corpus, which includes what fuzzing has found.

use std::{collections::BTreeSet, fs, path::Path};

use tcpmon::fuzz::DECODERS;

#[test]
fn every_decoder_survives_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("it can be read").file_name().into_string().expect("it is UTF-8")).collect()
    };
    assert_eq!(names(&corpus), DECODERS.iter().map(|(name, _)| (*name).to_owned()).collect());
    for (name, decoder) in DECODERS {
        let files = names(&corpus.join(name));
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in files {
            let bytes = fs::read(corpus.join(name).join(&file)).expect("it can be read");
            eprintln!("{name}/{file}");
            decoder(&bytes);
        }
    }
}
