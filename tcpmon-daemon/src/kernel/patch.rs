//! The one change to the programs' code before it is loaded, once the running kernel is known: how they cast a socket
//! that is known to be TCP. Needed because aya cannot link calls of kernel functions.

use object::{File, Object as _, ObjectSection as _, SectionKind};
use tcpmon_common::settings::CAST_CALL;
use tracing::warn;
use zerocopy::IntoBytes as _;

use super::support::CannotRun;

/// Opcode of a call (`include/uapi/linux/bpf.h`).
const CALL: u8 = 0x85;
/// Source register of a call of a kernel function, whose number is the function's BTF id.
const KERNEL_FUNCTION: u8 = 2;
/// `bpf_skc_to_tcp_sock` of `enum bpf_func_id`: the helper that finds out what kind of socket it is.
const SKC_TO_TCP_SOCK: u32 = 137;

/// The object, in which each cast is a call of the kernel function `cast` (a BTF id), which the verifier turns into a
/// move; or on kernels without such a function, a call of the helper. The result is aligned as aya requires.
pub fn with_casts(object: &[u8], cast: Option<u32>) -> Vec<u64> {
    let mut words = vec![0_u64; object.len().div_ceil(8)];
    let bytes = &mut words.as_mut_bytes()[..object.len()];
    bytes.copy_from_slice(object);
    // If this cannot be parsed, aya refuses it with a message.
    let Ok(file) = File::parse(object) else { return words };
    let (source, number) = match cast {
        Some(function) => (KERNEL_FUNCTION, function),
        None => (0, SKC_TO_TCP_SOCK),
    };
    for (start, size) in file.sections().filter(|section| section.kind() == SectionKind::Text).filter_map(range) {
        let instructions = bytes[start..start + size].chunks_exact_mut(8);
        for call in instructions.filter(|instruction| is_cast(instruction)) {
            call[1] = source << 4;
            call[4..].copy_from_slice(&number.to_le_bytes());
        }
    }
    words
}

/// Loads with the kernel function; if the kernel refuses that, with the helper: a kernel that interprets programs
/// instead of compiling them refuses calls of kernel functions.
pub fn first_that_loads<T>(
    cast: Option<u32>,
    mut load: impl FnMut(Option<u32>) -> Result<T, CannotRun>,
) -> Result<T, CannotRun> {
    match load(cast) {
        Err(error) if cast.is_some() && error.is_of_program() => {
            let loaded = load(None)?;
            warn!(%error, "the kernel refused bpf_rdonly_cast, so tcpmon runs without it: each segment and read costs \
                 more CPU");
            Ok(loaded)
        }
        loaded => loaded,
    }
}

fn range<'a>(section: impl object::ObjectSection<'a>) -> Option<(usize, usize)> {
    let (start, size) = section.file_range()?;
    Some((start.try_into().ok()?, size.try_into().ok()?))
}

/// Whether this is a call of the helper that stands for a cast.
fn is_cast(instruction: &[u8]) -> bool {
    instruction[..4] == [CALL, 0, 0, 0] && instruction[4..] == CAST_CALL.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::kernel::{OBJECT, support::refused};

    #[test]
    fn segments_and_reads_cast_and_each_cast_becomes_the_call_that_the_kernel_knows() {
        let casts = |words: &[u64], source: u8, number: u32| {
            let call = [&[CALL, source << 4, 0, 0], number.to_le_bytes().as_slice()].concat();
            words.as_bytes().chunks_exact(8).filter(|word| *word == call).count()
        };
        let before = with_casts(OBJECT, Some(0));
        let count = casts(&before, KERNEL_FUNCTION, 0);
        assert_eq!(count, 7, "one of tcp_probe, tcp_rcv_space_adjust, the look, and each iterator over files");
        let cast = with_casts(OBJECT, Some(4711));
        assert_eq!((casts(&cast, KERNEL_FUNCTION, 4711), casts(&cast, 0, CAST_CALL)), (count, 0));
        let helper = with_casts(OBJECT, None);
        assert_eq!(casts(&helper, 0, CAST_CALL), 0);
        assert_eq!(casts(&helper, 0, SKC_TO_TCP_SOCK), casts(&cast, 0, SKC_TO_TCP_SOCK) + count);
        let changed = cast.as_bytes().iter().zip(OBJECT).filter(|(new, old)| new != old).count();
        assert!(changed <= count * 5, "{changed} bytes");
        assert_eq!(with_casts(b"no object", None).as_bytes()[..9], *b"no object");
    }

    #[test]
    fn the_helper_is_tried_if_the_kernel_refuses_the_function_and_only_then() {
        let tried = |error: i32, cast, loads: fn(Option<u32>) -> bool| {
            let mut tried = Vec::new();
            let result = first_that_loads(cast, |cast| {
                tried.push(cast);
                let error = io::Error::from_raw_os_error(error);
                if loads(cast) { Ok(cast) } else { Err(refused(&format!("{cast:?}"), &error)) }
            });
            (tried, result.map_err(|error| error.missing.split_whitespace().nth(3).map(str::to_owned)))
        };
        let refuses = |cast: &str| Err(Some(cast.to_owned()));
        assert_eq!(tried(libc::EACCES, Some(7), |_| true), (vec![Some(7)], Ok(Some(7))));
        assert_eq!(tried(libc::EACCES, Some(7), |cast| cast.is_none()), (vec![Some(7), None], Ok(None)));
        assert_eq!(tried(libc::EACCES, Some(7), |_| false), (vec![Some(7), None], refuses("None")));
        assert_eq!(tried(libc::EACCES, None, |_| false), (vec![None], refuses("None")));
        assert_eq!(tried(libc::EPERM, Some(7), |_| false), (vec![Some(7)], refuses("Some(7)")));
        assert_eq!(tried(libc::ENOMEM, Some(7), |_| false), (vec![Some(7)], refuses("Some(7)")));
    }
}
