//! Sockets that are not established and have data to send, from inet_diag: what `ss` shows as `Send-Q`.
//!
//! A dump walks the kernel's whole connection table once per address family, whichever namespace requests it (0.2 ms
//! for 262,144 buckets on Linux 6.18), and takes no socket's lock.

use std::io;

use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use tcpmon_common::tcp_state;

use super::netlink;
use crate::model::host::Stuck;

/// States in which a send queue should soon be empty: the kernel's number, and the name in `ss`. FIN_WAIT2 is not among
/// them: there, everything has been acknowledged, and a request for it also lists the kernel's many sockets in
/// TIME_WAIT.
const STATES: [(u32, &str); 6] = [
    (tcp_state::SYN_SENT, "syn_sent"),
    (tcp_state::SYN_RECV, "syn_recv"),
    (tcp_state::FIN_WAIT1, "fin_wait_1"),
    (tcp_state::CLOSE_WAIT, "close_wait"),
    (tcp_state::LAST_ACK, "last_ack"),
    (tcp_state::CLOSING, "closing"),
];

/// Counts by state, in the order of [`STATES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StuckCounts([(u64, u64); STATES.len()]);

impl StuckCounts {
    /// Counts sockets in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel does not answer inet_diag requests.
    pub(super) fn read() -> io::Result<Self> {
        let mut counts = Self::default();
        for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let request = InetRequest {
                family,
                protocol: IPPROTO_TCP,
                extensions: ExtensionFlags::empty(),
                states: StateFlags::from_bits_retain(STATES.iter().map(|(number, _)| 1 << number).sum()),
                socket_id,
            };
            for answer in netlink::dump(NETLINK_SOCK_DIAG, SockDiagMessage::InetRequest(request))? {
                if let SockDiagMessage::InetResponse(response) = answer {
                    counts.add(response.header.state, response.header.send_queue);
                }
            }
        }
        Ok(counts)
    }

    fn add(&mut self, state: u8, send_queue_bytes: u32) {
        let index = STATES.iter().position(|(number, _)| *number == u32::from(state));
        if let Some((sockets, bytes)) = index.and_then(|index| self.0.get_mut(index))
            && send_queue_bytes > 0
        {
            *sockets += 1;
            *bytes += u64::from(send_queue_bytes);
        }
    }

    /// Sums for every state, including those without a socket.
    pub(super) fn sum<'a>(counts: impl IntoIterator<Item = &'a Self>) -> Vec<Stuck> {
        let mut sum: Vec<Stuck> =
            STATES.iter().map(|(_, state)| Stuck { state, sockets: 0, send_queue_bytes: 0 }).collect();
        for one in counts {
            for (stuck, (sockets, bytes)) in sum.iter_mut().zip(one.0) {
                stuck.sockets += sockets;
                stuck.send_queue_bytes += bytes;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_full_send_queues_of_the_named_states_count() {
        let mut here = StuckCounts::default();
        for (state, queue) in [(4, 100), (4, 1), (4, 0), (1, 5_000), (10, 3), (6, 7), (9, 2), (255, 9)] {
            here.add(state, queue);
        }
        let mut there = StuckCounts::default();
        there.add(4, u32::MAX);
        let sum = StuckCounts::sum([&here, &there]);
        assert_eq!(sum.len(), STATES.len());
        let some: Vec<_> = sum.into_iter().filter(|stuck| stuck.sockets > 0).collect();
        let expected = |state, sockets, send_queue_bytes| Stuck { state, sockets, send_queue_bytes };
        assert_eq!(some, [expected("fin_wait_1", 3, 101 + u64::from(u32::MAX)), expected("last_ack", 1, 2)]);
    }
}
