//! The service that a connection belongs to: the label `service`.

use std::net::IpAddr;

use tcpmon_common::{
    reader::FIRST_EPHEMERAL,
    socket::{SOCKET_ACTIVE, SOCKET_PASSIVE, SOCKET_PORT_CHOSEN},
};

use super::listeners::Listeners;

/// What determines the service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// `SOCKET_` flags.
    pub flags: u32,
    /// Whether the listening socket that accepted the connection is known, so that the flags say who chose its port.
    pub listener_known: bool,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// The local port of the listening socket that accepted the connection; its own local port if it was not accepted.
    pub local_port: u16,
    /// Local address; `None` if it is not known.
    pub local_address: Option<IpAddr>,
    /// Remote port.
    pub remote_port: u16,
}

/// The label of a connection's service.
///
/// `local:PORT` if this side accepted the connection, `local:ephemeral` if it accepted it on a port that the kernel
/// chose, `remote:PORT` if it opened the connection to a service port, `other` otherwise. For a connection older than
/// tcpmon, a listening socket on its local port shows that it was accepted; for one that was accepted by a socket that
/// is not known, it shows who chose the port.
pub fn service(endpoints: Endpoints, listeners: &Listeners) -> String {
    let Endpoints { flags, listener_known, netns, local_port, local_address, remote_port } = endpoints;
    let place = (netns, local_port);
    let at_place = || local_address.map_or_else(|| listeners.get(place), |address| listeners.accepting(place, address));
    let listener = if flags & SOCKET_ACTIVE == 0 && !listener_known { at_place() } else { None };
    let accepted = flags & SOCKET_PASSIVE != 0;
    if flags & SOCKET_PORT_CHOSEN != 0 || listener.is_some_and(|listener| listener.port_chosen) {
        "local:ephemeral".into()
    } else if accepted || listener.is_some() {
        format!("local:{local_port}")
    } else if remote_port < FIRST_EPHEMERAL {
        format!("remote:{remote_port}")
    } else {
        "other".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{cgroups::Process, listeners::Listener};

    fn listening_at(place: (u32, u16), port_chosen: bool) -> Listeners {
        let mut listeners = Listeners::default();
        let process = Process { tgid: 1, cgroup: 1, name: "iperf3".into() };
        listeners.insert(place, 1, std::net::Ipv4Addr::UNSPECIFIED.into(), Listener { process, port_chosen });
        listeners
    }

    fn endpoints(flags: u32, local_port: u16, remote_port: u16) -> Endpoints {
        Endpoints { flags, listener_known: false, netns: 7, local_port, local_address: None, remote_port }
    }

    #[test]
    fn the_service_is_on_the_side_that_accepted() {
        let nobody = Listeners::default();
        let listening = listening_at((7, 5201), false);
        let anywhere = listening_at((7, 5201), true);
        let cases = [
            (endpoints(SOCKET_PASSIVE, 5201, 443), &nobody, "local:5201"),
            (endpoints(SOCKET_ACTIVE, 40_000, 443), &nobody, "remote:443"),
            (endpoints(SOCKET_ACTIVE, 5201, 443), &listening, "remote:443"),
            (endpoints(SOCKET_ACTIVE, 40_000, 50_000), &nobody, "other"),
            (endpoints(0, 5201, 40_000), &listening, "local:5201"),
            (endpoints(0, 5201, 40_000), &nobody, "other"),
            (endpoints(0, 40_000, 5201), &nobody, "remote:5201"),
            (endpoints(SOCKET_PASSIVE | SOCKET_PORT_CHOSEN, 0, 443), &nobody, "local:ephemeral"),
            (endpoints(0, 5201, 40_000), &anywhere, "local:ephemeral"),
            // As after a handshake with TCP Fast Open: between its SYN and its ACK, another connection came.
            (endpoints(SOCKET_PASSIVE, 5201, 443), &anywhere, "local:ephemeral"),
            (Endpoints { listener_known: true, ..endpoints(SOCKET_PASSIVE, 5201, 443) }, &anywhere, "local:5201"),
            (endpoints(SOCKET_ACTIVE, 5201, 443), &anywhere, "remote:443"),
        ];
        for (ends, listeners, expected) in cases {
            assert_eq!(service(ends, listeners), expected);
        }
        let elsewhere = listening_at((8, 5201), false);
        assert_eq!(service(endpoints(0, 5201, 40_000), &elsewhere), "other");
    }

    #[test]
    fn a_port_that_was_chosen_at_one_address_and_asked_for_at_another_is_told_apart_in_any_order() {
        let [chosen, asked_for] =
            ["10.0.0.1", "10.0.0.2"].map(|address| address.parse::<IpAddr>().expect("an address"));
        for order in [[chosen, asked_for], [asked_for, chosen]] {
            let mut listeners = Listeners::default();
            for (cookie, address) in (1..).zip(order) {
                let process = Process { tgid: 1, cgroup: 1, name: "nginx".into() };
                listeners.insert((7, 5201), cookie, address, Listener { process, port_chosen: address == chosen });
            }
            let at = |local_address| service(Endpoints { local_address, ..endpoints(0, 5201, 40_000) }, &listeners);
            assert_eq!([Some(chosen), Some(asked_for), None].map(at), ["local:ephemeral", "local:5201", "local:5201"]);
        }
    }
}
