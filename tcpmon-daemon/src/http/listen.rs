//! Addresses to listen on, in the forms that exporters accept.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    str::FromStr,
};

use rustix::net::{AddressFamily, sockopt};
use tokio::net::{TcpListener, TcpSocket};

/// An address to listen on: `127.0.0.1:10793`, `[::1]:10793`, or `:10793` for every address of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// `None` for every address.
    ip: Option<IpAddr>,
    port: u16,
}

/// Text that is not an address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an address to listen on: use the form `127.0.0.1:10793`, `[::1]:10793`, or `:10793` for all \
     addresses"
)]
pub struct AddressError {
    text: String,
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let all = text.strip_prefix(':').and_then(|port| port.parse().ok());
        let address = all.map(|port| Self { ip: None, port }).or_else(|| {
            let address: SocketAddr = text.parse().ok()?;
            Some(Self { ip: Some(address.ip()), port: address.port() })
        });
        address.ok_or_else(|| AddressError { text: text.to_owned() })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}: {}", remedy(source))]
pub struct BindError {
    /// The address.
    pub address: ListenAddress,
    /// The system's error.
    pub source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "stop the process that listens there (`ss -ltnp` shows it), or choose another address with \
             --web.listen-address"
        }
        io::ErrorKind::AddrNotAvailable => {
            "choose an address of this host (`ip address` lists them) with --web.listen-address"
        }
        io::ErrorKind::PermissionDenied => "choose a port above 1023 with --web.listen-address",
        _ => "choose another address with --web.listen-address",
    }
}

/// Listens on all of the addresses, or on none.
///
/// # Errors
/// Names the address on which it cannot listen, and a remedy.
pub async fn bind(addresses: &[ListenAddress]) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let listener = bind_one(*address).await;
        listeners.push(listener.map_err(|source| BindError { address: *address, source })?);
    }
    Ok(listeners)
}

async fn bind_one(address: ListenAddress) -> io::Result<TcpListener> {
    if let Some(ip) = address.ip {
        return TcpListener::bind((ip, address.port)).await;
    }
    // The IPv6 socket accepts IPv4 connections, too. The fallback is for hosts without IPv6.
    match bind_all(address.port) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port)).await
        }
        result => result,
    }
}

/// Listens on every IPv6 and IPv4 address, whatever the value of `net.ipv6.bindv6only`.
fn bind_all(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    socket.set_reuseaddr(true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(ACCEPT_QUEUE_LENGTH)
}

/// Length of the accept queue: the same as that of `TcpListener::bind`.
const ACCEPT_QUEUE_LENGTH: u32 = 1024;

/// Why tcpmon cannot listen on the sockets of systemd.
#[derive(Debug, thiserror::Error)]
pub enum SystemdSocketError {
    /// There are none.
    #[error(
        "systemd passed no socket (LISTEN_FDS): start tcpmon through its systemd .socket unit, or omit \
         --web.systemd-socket"
    )]
    None,
    /// What was passed is not a listening TCP socket.
    #[error(
        "file descriptor {0} from systemd is not a listening TCP socket: use `ListenStream=PORT` without `Accept=yes`"
    )]
    NotListening(RawFd),
    /// The system's error.
    #[error("cannot use the sockets that systemd passed: {0}: check LISTEN_FDS and LISTEN_PID")]
    Failed(#[from] io::Error),
}

/// Takes over the listening sockets that systemd passed (`sd_listen_fds(3)`). Works once in the life of the process.
///
/// # Errors
/// If no socket was passed, or one is not a listening TCP socket.
pub fn systemd_sockets() -> Result<Vec<TcpListener>, SystemdSocketError> {
    let listeners: Vec<_> = sd_notify::listen_fds()?.map(systemd_socket).collect::<Result<_, _>>()?;
    if listeners.is_empty() { Err(SystemdSocketError::None) } else { Ok(listeners) }
}

#[expect(unsafe_code, reason = "descriptors come as numbers")]
fn systemd_socket(number: RawFd) -> Result<TcpListener, SystemdSocketError> {
    // SAFETY: listen_fds() has set a flag on the descriptor, so it is open; it is only inspected here.
    let passed = unsafe { BorrowedFd::borrow_raw(number) };
    let family = sockopt::socket_domain(passed);
    let tcp = matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6));
    if !tcp || !sockopt::socket_acceptconn(passed).unwrap_or(false) {
        return Err(SystemdSocketError::NotListening(number));
    }
    // SAFETY: it is a listening TCP socket, and tcpmon has opened none itself, so nothing else owns the descriptor.
    let socket = std::net::TcpListener::from(unsafe { OwnedFd::from_raw_fd(number) });
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket)?)
}
