//! The daemon's local socket: live views get their data from the running daemon, without privileges and without
//! programs of their own. The socket is read-only.

mod client;
mod listen;
mod server;
pub(crate) mod wire;

pub use self::{
    client::{ClientError, LiveClient},
    listen::{LiveSocketError, listen},
    server::{LiveSource, serve},
};

/// Where the daemon of the packages listens, and where `tcpmon top` looks for it.
pub const DEFAULT_SOCKET: &str = "/run/tcpmon/tcpmon.sock";
