//! Listening sockets: they name the process of connections that nobody has read yet, and show which connections were
//! accepted.

use std::{collections::HashMap, net::IpAddr};

use super::cgroups::Process;

/// Network namespace (its inode number) and port.
pub type NetnsPort = (u32, u16);

/// Listening sockets.
#[derive(Debug, Default)]
pub struct Listeners {
    by_netns_port: HashMap<NetnsPort, Vec<BoundListener>>,
    /// By cookie: where each one listens.
    where_bound: HashMap<u64, NetnsPort>,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The process that has it open; until that is known, the one that called `listen`.
    pub process: Process,
    /// Whether the kernel chose the port.
    pub port_chosen: bool,
}

/// A listening socket with the address that it listens on.
#[derive(Debug)]
struct BoundListener {
    cookie: u64,
    /// An IPv4 address is stored as such, even for an IPv6 socket.
    address: IpAddr,
    listener: Listener,
}

impl BoundListener {
    /// How well it fits a connection to this address, in the order in which the kernel chooses: its own address, any
    /// address of that family, any address. `None` if it accepts no connections to this address.
    fn fits(&self, address: IpAddr) -> Option<u8> {
        if self.address == address {
            return Some(2);
        }
        let is_family = self.address.is_ipv4() == address.is_ipv4();
        (self.address.is_unspecified() && (is_family || self.address.is_ipv6())).then_some(u8::from(is_family))
    }
}

impl Listeners {
    /// Adds the socket with this cookie, which listens on this address.
    pub fn insert(&mut self, at: NetnsPort, cookie: u64, address: IpAddr, listener: Listener) {
        self.remove(cookie);
        let address = address.to_canonical();
        self.by_netns_port.entry(at).or_default().push(BoundListener { cookie, address, listener });
        self.where_bound.insert(cookie, at);
    }

    /// Removes a socket that no longer listens.
    pub fn remove(&mut self, cookie: u64) {
        let Some(at) = self.where_bound.remove(&cookie) else { return };
        if let Some(bound) = self.by_netns_port.get_mut(&at) {
            bound.retain(|bound| bound.cookie != cookie);
            if bound.is_empty() {
                self.by_netns_port.remove(&at);
            }
        }
    }

    /// The listening socket with this cookie.
    pub fn by_cookie(&self, cookie: u64) -> Option<&Listener> {
        let bound = self.by_netns_port.get(self.where_bound.get(&cookie)?)?;
        bound.iter().find(|bound| bound.cookie == cookie).map(|bound| &bound.listener)
    }

    /// Changes each listening socket, given its cookie.
    pub fn for_each(&mut self, mut change: impl FnMut(u64, &mut Listener)) {
        for bound in self.by_netns_port.values_mut().flatten() {
            change(bound.cookie, &mut bound.listener);
        }
    }

    /// The listening socket on this port, at any address, that was shown last. One whose port the kernel did not
    /// choose comes first, because most connections to a port of the kernel's choice have a flag that says so.
    pub fn get(&self, at: NetnsPort) -> Option<&Listener> {
        let bound = self.by_netns_port.get(&at)?;
        bound.iter().map(|bound| &bound.listener).max_by_key(|listener| !listener.port_chosen)
    }

    /// The listening socket that accepts connections to this address, the last one if there are several. If none does,
    /// any socket on this port (a transparent proxy accepts connections to all addresses).
    pub fn accepting(&self, at: NetnsPort, address: IpAddr) -> Option<&Listener> {
        let address = address.to_canonical();
        let bound = self.by_netns_port.get(&at)?;
        let fitting = bound.iter().filter_map(|bound| Some((bound.fits(address)?, &bound.listener)));
        fitting.max_by_key(|(fits, _)| *fits).map(|(_, listener)| listener).or_else(|| self.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(process: &str) -> Listener {
        Listener { process: Process { tgid: 1, cgroup: 1, name: process.into() }, port_chosen: false }
    }

    fn listening(addresses: &[(&str, &str)]) -> Listeners {
        let mut listeners = Listeners::default();
        for (cookie, (address, process)) in (1..).zip(addresses) {
            listeners.insert((1, 80), cookie, address.parse().expect("an address"), named(process));
        }
        listeners
    }

    #[test]
    fn a_place_is_taken_while_one_of_its_sockets_listens_and_names_one_that_does() {
        let mut listeners = listening(&[("0.0.0.0", "a"), ("0.0.0.0", "b")]);
        assert_eq!(listeners.get((1, 80)), Some(&named("b")));
        listeners.remove(2);
        assert_eq!(listeners.get((1, 80)), Some(&named("a")));
        listeners.remove(7);
        listeners.insert((1, 80), 1, "0.0.0.0".parse().expect("an address"), named("c"));
        assert_eq!(listeners.get((1, 80)), Some(&named("c")));
        assert_eq!([1, 2].map(|cookie| listeners.by_cookie(cookie)), [Some(&named("c")), None]);
        listeners.remove(1);
        assert_eq!((listeners.get((1, 80)), listeners.by_cookie(1)), (None, None));
        assert!(listeners.by_netns_port.is_empty() && listeners.where_bound.is_empty());
    }

    #[test]
    fn a_connection_belongs_to_the_listener_that_accepts_it() {
        let listeners =
            listening(&[("10.0.0.1", "one"), ("::", "any"), ("10.0.0.2", "two"), ("::ffff:10.0.0.3", "three")]);
        let accepting = |address: &str| {
            let listener = listeners.accepting((1, 80), address.parse().expect("an address"));
            listener.expect("one does").process.name.clone()
        };
        for (address, process) in [
            ("10.0.0.1", "one"),
            ("10.0.0.2", "two"),
            ("10.0.0.3", "three"),
            ("::ffff:10.0.0.2", "two"),
            ("10.0.0.9", "any"),
            ("2001:db8::1", "any"),
        ] {
            assert_eq!(accepting(address), process, "{address}");
        }
        let both = listening(&[("0.0.0.0", "four"), ("::", "six")]);
        let accepting =
            |address: &str| both.accepting((1, 80), address.parse().expect("an address")).map(|it| &*it.process.name);
        assert_eq!([accepting("10.0.0.1"), accepting("2001:db8::1")], [Some("four"), Some("six")]);
        // None listens on this address, but there is no other one.
        let elsewhere = listening(&[("10.0.0.1", "one")]);
        assert!(elsewhere.accepting((1, 80), "10.0.0.2".parse().expect("an address")).is_some());
        assert!(elsewhere.accepting((2, 80), "10.0.0.1".parse().expect("an address")).is_none());
    }
}
