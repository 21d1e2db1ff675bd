//! Which service a connection belongs to: the label `service`.

use std::collections::HashMap;

use tcpmon_common::socket::{SOCKET_ACTIVE, SOCKET_PASSIVE, SocketRecord};

/// First port of the range from which systems take ports for outgoing connections: at or above it a remote port names
/// no service.
const FIRST_EPHEMERAL: u16 = 32_768;

/// Who listens: (network namespace, port) -> name of the process that called `listen`.
pub type Listeners = HashMap<(u32, u16), String>;

/// The label: `local:PORT` when this side accepted the connection, `remote:PORT` when it opened it towards a service
/// port, `other` otherwise. For a connection older than tcpmon, a listener on its local port says that it was
/// accepted.
pub fn service(record: &SocketRecord, listeners: &Listeners) -> String {
    let live = &record.live;
    let flags = record.state.flags;
    let accepted = flags & SOCKET_PASSIVE != 0
        || flags & SOCKET_ACTIVE == 0 && listeners.contains_key(&(live.netns, live.local_port));
    if accepted {
        format!("local:{}", live.local_port)
    } else if live.remote_port < FIRST_EPHEMERAL {
        format!("remote:{}", live.remote_port)
    } else {
        "other".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn record(flags: u32, local_port: u16, remote_port: u16) -> SocketRecord {
        let mut record = SocketRecord::new_zeroed();
        record.state.flags = flags;
        record.live.netns = 7;
        record.live.local_port = local_port;
        record.live.remote_port = remote_port;
        record
    }

    #[test]
    fn the_service_is_on_the_side_that_accepted() {
        let nobody = Listeners::new();
        let listening = Listeners::from([((7, 5201), "iperf3".into())]);
        let cases = [
            (record(SOCKET_PASSIVE, 5201, 443), &nobody, "local:5201"),
            (record(SOCKET_ACTIVE, 40_000, 443), &nobody, "remote:443"),
            (record(SOCKET_ACTIVE, 5201, 443), &listening, "remote:443"),
            (record(SOCKET_ACTIVE, 40_000, 50_000), &nobody, "other"),
            (record(0, 5201, 40_000), &listening, "local:5201"),
            (record(0, 5201, 40_000), &nobody, "other"),
            (record(0, 40_000, 5201), &nobody, "remote:5201"),
        ];
        for (record, listeners, expected) in cases {
            assert_eq!(service(&record, listeners), expected);
        }
        let elsewhere = Listeners::from([((8, 5201), "iperf3".into())]);
        assert_eq!(service(&record(0, 5201, 40_000), &elsewhere), "other");
    }
}
