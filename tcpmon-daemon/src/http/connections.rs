//! The open connections, and which one is closed when the limit is reached.
//!
//! A new connection is always accepted: if it had to wait, a few hundred idle connections would lock out the scraper.
//! At the limit, the client with the most connections loses the one that has waited for it longest. So only clients
//! with many connections lose any. The scraper's own connection is the newest, and in a flood from other addresses its
//! client has only one.

use std::{
    cmp::Reverse,
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use tokio::task::{AbortHandle, Id};

/// Maximum number of connections. With TLS and a partly received header, one takes up to 80 kB; all of them take 20 MB.
const MAX_CONNECTIONS: usize = 256;

/// How many connections may be open. At most a quarter of the file descriptors: the others are needed for the programs,
/// their maps and the processes that tcpmon looks at.
pub(super) fn max_connections() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    descriptors.map_or(MAX_CONNECTIONS, |descriptors| {
        usize::try_from(descriptors / 4).unwrap_or(MAX_CONNECTIONS).clamp(8, MAX_CONNECTIONS)
    })
}

/// A client: an IPv4 address, or the /64 of an IPv6 address, because one host can use all addresses of a /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client(IpAddr);

impl From<SocketAddr> for Client {
    fn from(address: SocketAddr) -> Self {
        Self(match address.ip().to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Since when a connection has been waiting for its client: to finish the handshake or the header, to take the
/// response, or to send the next request. The time does not restart when the client takes part of a response. `None`
/// while the server works on a response.
#[derive(Clone, Debug)]
pub(super) struct WaitingSince(Arc<Mutex<Option<Instant>>>);

impl WaitingSince {
    pub(super) fn now() -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now()))))
    }

    pub(super) fn clear(&self) {
        self.set(None);
    }

    pub(super) fn restart(&self) {
        self.set(Some(Instant::now()));
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    pub(super) fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct OpenConnection {
    client: Client,
    waiting_since: WaitingSince,
    task: AbortHandle,
}

/// Open connections, by the task that serves each.
#[derive(Default)]
pub(super) struct Connections {
    open: HashMap<Id, OpenConnection>,
    /// The warning that the limit is reached has been logged.
    warned: bool,
}

impl Connections {
    pub(super) fn add(&mut self, client: Client, waiting_since: WaitingSince, task: AbortHandle) {
        self.open.insert(task.id(), OpenConnection { client, waiting_since, task });
    }

    pub(super) fn remove(&mut self, task: Id) {
        self.open.remove(&task);
    }

    /// Closes connections until one more can be opened.
    pub(super) fn make_room(&mut self, max: usize) {
        if self.open.len() < max / 2 {
            self.warned = false;
        }
        while self.open.len() >= max {
            let connections = self.open.iter().map(|(id, open)| (*id, open.client, open.waiting_since.get()));
            let Some(closed) =
                connection_to_close(&connections.collect::<Vec<_>>()).and_then(|id| self.open.remove(&id))
            else {
                return;
            };
            closed.task.abort();
            if !self.warned {
                self.warned = true;
                tracing::warn!(max, client = %closed.client, "too many connections: closing idle ones for new ones");
            }
        }
    }
}

/// The connection to close: among those of the client with the most connections, the one that has waited longest. One
/// whose response is being worked on is chosen only if none of that client's connections waits.
fn connection_to_close<I: Copy>(connections: &[(I, Client, Option<Instant>)]) -> Option<I> {
    let mut held = HashMap::new();
    for (_, client, _) in connections {
        *held.entry(*client).or_insert(0_usize) += 1;
    }
    let rank = |(_, client, since): &&(I, Client, Option<Instant>)| (held[client], since.is_some(), Reverse(*since));
    connections.iter().max_by_key(rank).map(|(id, ..)| *id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(address: &str) -> Client {
        SocketAddr::new(address.parse().expect("an address"), 1).into()
    }

    #[test]
    fn the_client_with_the_most_connections_loses_the_one_that_waits_longest() {
        let (few, many) = (client("10.0.0.1"), client("10.0.0.2"));
        let start = Instant::now();
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        assert_eq!(
            connection_to_close(&[(1, few, at(0)), (2, many, at(3)), (3, many, at(2)), (4, many, None)]),
            Some(3)
        );
        assert_eq!(connection_to_close(&[(1, many, None), (2, many, at(9)), (3, few, at(0))]), Some(2));
        assert_eq!(
            connection_to_close(&[(1, many, None), (2, many, None), (3, few, at(0))]).map(|id| id < 3),
            Some(true)
        );
        assert_eq!(connection_to_close::<u8>(&[]), None);
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_the_network_of_a_host() {
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
    }

    #[test]
    fn connections_stay_below_the_descriptors() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.expect("a limit");
        assert!((8..=256).contains(&max_connections()));
        assert!(max_connections() as u64 <= limit.div_ceil(2));
    }
}
