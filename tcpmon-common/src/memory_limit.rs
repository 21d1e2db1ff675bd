//! Requests for socket memory that a limit refused.

/// What the memory was for. The index is the argument `kind` of `sock_exceed_buf_limit` (`SK_MEM_SEND`, `SK_MEM_RECV`
/// of `net/sock.h`, which are macros and therefore not in BTF).
pub const KINDS: [&str; 2] = ["send", "receive"];
