//! Which service a connection belongs to: the label `service`.

use std::collections::HashMap;

use tcpmon_common::socket::{SOCKET_ACTIVE, SOCKET_PASSIVE};

/// First port of the range from which systems take ports for outgoing connections: at or above it a remote port names
/// no service.
const FIRST_EPHEMERAL: u16 = 32_768;

/// Who listens: (network namespace, port) -> name of the process that called `listen`.
pub type Listeners = HashMap<(u32, u16), String>;

/// What decides about the service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// `SOCKET_` flags.
    pub flags: u32,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Port of this side.
    pub local_port: u16,
    /// Port of the other side.
    pub remote_port: u16,
}

/// The label: `local:PORT` when this side accepted the connection, `remote:PORT` when it opened it towards a service
/// port, `other` otherwise. For a connection older than tcpmon, a listener on its local port says that it was
/// accepted.
pub fn service(ends: Ends, listeners: &Listeners) -> String {
    let Ends { flags, netns, local_port, remote_port } = ends;
    let accepted =
        flags & SOCKET_PASSIVE != 0 || flags & SOCKET_ACTIVE == 0 && listeners.contains_key(&(netns, local_port));
    if accepted {
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

    fn ends(flags: u32, local_port: u16, remote_port: u16) -> Ends {
        Ends { flags, netns: 7, local_port, remote_port }
    }

    #[test]
    fn the_service_is_on_the_side_that_accepted() {
        let nobody = Listeners::new();
        let listening = Listeners::from([((7, 5201), "iperf3".into())]);
        let cases = [
            (ends(SOCKET_PASSIVE, 5201, 443), &nobody, "local:5201"),
            (ends(SOCKET_ACTIVE, 40_000, 443), &nobody, "remote:443"),
            (ends(SOCKET_ACTIVE, 5201, 443), &listening, "remote:443"),
            (ends(SOCKET_ACTIVE, 40_000, 50_000), &nobody, "other"),
            (ends(0, 5201, 40_000), &listening, "local:5201"),
            (ends(0, 5201, 40_000), &nobody, "other"),
            (ends(0, 40_000, 5201), &nobody, "remote:5201"),
        ];
        for (ends, listeners, expected) in cases {
            assert_eq!(service(ends, listeners), expected);
        }
        let elsewhere = Listeners::from([((8, 5201), "iperf3".into())]);
        assert_eq!(service(ends(0, 5201, 40_000), &elsewhere), "other");
    }
}
