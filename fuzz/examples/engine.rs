//! Runs the decoder named by `TCPMON_DECODER` on bytes that libFuzzer chooses.
#![no_main]

use std::{env, panic, sync::LazyLock};

use tcpmon::fuzz::{self, Decoder};

static DECODER: LazyLock<Decoder> = LazyLock::new(|| {
    // libFuzzer's hook ends the process at each panic. The Parquet crate panics on some damaged files, though, and
    // tcpmon catches these panics, so they must not end the process.
    let end = panic::take_hook();
    let parquet = env::var("TCPMON_DECODER").is_ok_and(|name| name == "parquet");
    panic::set_hook(Box::new(move |panic| {
        let elsewhere = panic.location().is_some_and(|location| location.file().contains("/registry/src/"));
        if !(parquet && elsewhere) {
            end(panic);
        }
    }));
    fuzz::decoder()
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| DECODER(bytes));
