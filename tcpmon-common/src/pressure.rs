//! Requests for socket memory that a limit refused.

/// For what the memory was to be: the argument `kind` of `sock_exceed_buf_limit` (`SK_MEM_SEND`, `SK_MEM_RECV` of
/// `net/sock.h`, macros that BTF does not know) is the index.
pub const LIMIT_KINDS: [&str; 2] = ["send", "receive"];
