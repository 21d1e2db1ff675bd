//! Which service a connection belongs to: the label `service`.

use tcpmon_common::{
    reader::FIRST_EPHEMERAL,
    socket::{SOCKET_ACTIVE, SOCKET_PASSIVE},
};

use super::listeners::Listeners;

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
    let accepted = flags & SOCKET_PASSIVE != 0 || flags & SOCKET_ACTIVE == 0 && listeners.contains((netns, local_port));
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

    fn listening_at(place: (u32, u16)) -> Listeners {
        let mut listeners = Listeners::default();
        listeners.insert(place, "iperf3".into());
        listeners
    }

    fn ends(flags: u32, local_port: u16, remote_port: u16) -> Ends {
        Ends { flags, netns: 7, local_port, remote_port }
    }

    #[test]
    fn the_service_is_on_the_side_that_accepted() {
        let nobody = Listeners::default();
        let listening = listening_at((7, 5201));
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
        let elsewhere = listening_at((8, 5201));
        assert_eq!(service(ends(0, 5201, 40_000), &elsewhere), "other");
    }
}
