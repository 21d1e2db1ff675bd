//! The daemon's local socket: live views get what they show from a daemon that runs anyway, without privileges and
//! without programs of their own. It can only be read from.

mod client;
mod listen;
mod server;
pub(crate) mod wire;

pub use self::{
    client::{ClientError, LiveClient},
    listen::{LiveSocketError, listen},
    server::{LiveSource, serve},
};

/// Where the packages have the daemon listen, and where `tcpmon top` looks for it.
pub const DEFAULT_SOCKET: &str = "/run/tcpmon/tcpmon.sock";
