//! Addresses to listen on, in the forms that exporters accept.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs as _},
    os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    str::FromStr,
};

use rustix::net::{AddressFamily, netdevice, sockopt};
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

/// An address to listen on: `127.0.0.1:10793`, `[::1]:10793`, `[fe80::1%eth0]:10793`, `localhost:10793`, or `:10793`
/// for every address of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    host: ListenHost,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ListenHost {
    /// Every address.
    All,
    Address(IpAddr),
    /// A link-local address, and the name or the index of the device whose link that is.
    OnDevice(Ipv6Addr, String),
    /// A name that stands for addresses.
    Name(String),
}

/// Text that is not an address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an address to listen on: use the form `127.0.0.1:10793`, `[::1]:10793`, `[fe80::1%eth0]:10793`, \
     `localhost:10793`, or `:10793` for all addresses"
)]
pub struct AddressError {
    text: String,
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            Some(Self { host: ListenHost::parse(host)?, port: port.parse().ok()? })
        };
        parse().ok_or_else(|| AddressError { text: text.to_owned() })
    }
}

impl ListenHost {
    fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']')?;
            return match inner.split_once('%') {
                Some((_, "")) => None,
                Some((address, device)) => Some(Self::OnDevice(address.parse().ok()?, device.to_owned())),
                None => Some(Self::Address(IpAddr::V6(inner.parse().ok()?))),
            };
        }
        let is_name = text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        match text.parse() {
            _ if text.is_empty() => Some(Self::All),
            Ok(address) => Some(Self::Address(IpAddr::V4(address))),
            // Text without any letter was meant as an address.
            Err(_) if is_name && text.contains(|c: char| c.is_ascii_alphabetic()) => Some(Self::Name(text.to_owned())),
            Err(_) => None,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.host {
            ListenHost::All => write!(f, ":{port}"),
            ListenHost::Address(address) => SocketAddr::new(*address, port).fmt(f),
            ListenHost::OnDevice(address, device) => write!(f, "[{address}%{device}]:{port}"),
            ListenHost::Name(name) => write!(f, "{name}:{port}"),
        }
    }
}

/// An address on which tcpmon cannot listen.
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

/// Listens on all of the addresses, or on none. This includes an address that no device has yet: it may come from DHCP
/// or VRRP later in the boot.
///
/// # Errors
/// Names the address on which it cannot listen, and a remedy.
pub async fn bind(addresses: &[ListenAddress]) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let bound = bind_one(address).await;
        listeners.extend(bound.map_err(|source| BindError { address: address.clone(), source })?);
    }
    Ok(listeners)
}

async fn bind_one(address: &ListenAddress) -> io::Result<Vec<TcpListener>> {
    let port = address.port;
    match &address.host {
        // The IPv6 socket accepts IPv4 connections, too. The fallback is for hosts without IPv6.
        ListenHost::All => match bind_all(port) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                Ok(vec![TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?])
            }
            bound => Ok(vec![bound?]),
        },
        ListenHost::Address(address) => Ok(vec![bind_to(SocketAddr::new(*address, port))?]),
        ListenHost::OnDevice(address, device) => {
            let index = match device.parse() {
                Ok(index) => index,
                Err(_) => netdevice::name_to_index(TcpSocket::new_v6()?, device)?,
            };
            Ok(vec![bind_to(SocketAddrV6::new(*address, port, 0, index).into())?])
        }
        ListenHost::Name(name) => {
            // On this thread: a thread of tokio's pool would outlive the start, with all privileges.
            let mut addresses: Vec<_> = (name.as_str(), port).to_socket_addrs()?.collect();
            addresses.sort_unstable();
            addresses.dedup();
            // `localhost` has an IPv6 address even where the kernel has no IPv6.
            let is_no_family = |error: &io::Error| error.raw_os_error() == Some(libc::EAFNOSUPPORT);
            let (mut bound, mut without) = (Vec::new(), None);
            for address in addresses {
                match bind_to(address) {
                    Err(error) if is_no_family(&error) => without = Some(error),
                    listener => bound.push(listener?),
                }
            }
            without.filter(|_| bound.is_empty()).map_or(Ok(bound), Err)
        }
    }
}

fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let bind = |free| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        match address {
            SocketAddr::V4(_) => sockopt::set_ip_freebind(&socket, free)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, free)?,
        }
        socket.bind(address)?;
        socket.listen(ACCEPT_QUEUE_LENGTH)
    };
    match bind(false) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let listener = bind(true)?;
            warn!(
                %address,
                "no network device has this address yet, so nobody can connect to it: tcpmon serves on it as soon as \
                 one has it; if neither DHCP nor VRRP brings it, correct --web.listen-address (`ip address` lists the \
                 addresses)"
            );
            Ok(listener)
        }
        bound => bound,
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

/// Takes over the listening sockets that systemd passed (`sd_listen_fds(3)`). Works only once in the life of the
/// process.
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
