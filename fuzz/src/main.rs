//! Runs one of tcpmon's decoders, which `TCPMON_DECODER` names: with the feature `engine` on bytes that libFuzzer
//! chooses (`cargo xtask fuzz`), otherwise on the files that it is given.
#![cfg_attr(feature = "engine", no_main)]

use std::env;

use tcpmon::fuzz::{DECODERS, Decoder};

/// The decoder that the environment names.
fn decoder() -> Decoder {
    let name = env::var("TCPMON_DECODER").unwrap_or_default();
    let Some((_, decoder)) = DECODERS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = DECODERS.iter().map(|(name, _)| *name).collect();
        panic!("TCPMON_DECODER={name:?}: set it to one of {}", known.join(", "));
    };
    *decoder
}

#[cfg(feature = "engine")]
mod engine {
    use std::{panic, sync::LazyLock};

    static DECODER: LazyLock<super::Decoder> = LazyLock::new(|| {
        // libFuzzer's hook ends the process at each panic. Those in other crates that read Parquet are caught by
        // tcpmon, because the crate panics at some damaged files.
        let end = panic::take_hook();
        let parquet = super::env::var("TCPMON_DECODER").is_ok_and(|name| name == "parquet");
        panic::set_hook(Box::new(move |panic| {
            let elsewhere = panic.location().is_some_and(|location| location.file().contains("/registry/src/"));
            if !(parquet && elsewhere) {
                end(panic);
            }
        }));
        super::decoder()
    });

    libfuzzer_sys::fuzz_target!(|bytes: &[u8]| DECODER(bytes));
}

#[cfg(not(feature = "engine"))]
fn main() -> std::io::Result<()> {
    let decoder = decoder();
    for file in env::args_os().skip(1) {
        decoder(&std::fs::read(file)?);
    }
    Ok(())
}
