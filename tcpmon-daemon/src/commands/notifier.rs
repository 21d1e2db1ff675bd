//! The socket on which systemd is told about the daemon's state (`Type=notify`).

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
};

use sd_notify::NotifyState;
use tracing::warn;

/// Tells systemd about the daemon's state; without systemd, it does nothing.
///
/// sd-notify opens a socket for each message, which the sandbox does not allow.
#[derive(Clone, Debug)]
pub(super) struct Notifier(Option<Arc<UnixDatagram>>);

impl Notifier {
    /// Connects to the socket in `NOTIFY_SOCKET`, if there is one.
    pub(super) fn connect() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Self(None) };
        let connected = || {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&name)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            io::Result::Ok(socket)
        };
        match connected() {
            Ok(socket) => Self(Some(Arc::new(socket))),
            Err(error) => {
                warn!(socket = %name.display(), %error, "cannot notify systemd");
                Self(None)
            }
        }
    }

    /// Sends these states in one message. Continues if the service manager does not read it.
    pub(super) fn notify(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.0 else { return };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        let _ = socket.send(message.as_bytes());
    }
}
