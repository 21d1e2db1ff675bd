//! Sockets that are not established and have data to send, from inet_diag: what `ss` shows as `Send-Q`.
//!
//! A dump walks the kernel's whole connection table once per address family, whichever namespace requests it (0.2 ms
//! for 262,144 buckets on Linux 6.18), and takes no socket's lock.

use std::io;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use tcpmon_common::tcp_state;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::netlink::{self, Object};
use crate::host_state::Stuck;

/// The type of requests and answers (`linux/sock_diag.h`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;

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

/// `struct inet_diag_req_v2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct SocketsRequest {
    family: u8,
    protocol: u8,
    extensions: u8,
    padding: u8,
    /// A bit for each state.
    states: u32,
    /// `struct inet_diag_sockid`: zero for any socket.
    socket: [u32; 12],
}

/// `struct inet_diag_msg`, without the attributes that follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(crate) struct SocketAnswer {
    family: u8,
    state: u8,
    timer: u8,
    retransmits: u8,
    socket: [u32; 12],
    expires: u32,
    receive_queue_bytes: u32,
    send_queue_bytes: u32,
    user: u32,
    inode: u32,
}

impl Object for SocketAnswer {
    type Request = SocketsRequest;
    const PROTOCOL: isize = NETLINK_SOCK_DIAG;
    const REQUEST: u16 = SOCK_DIAG_BY_FAMILY;
    const ANSWER: u16 = SOCK_DIAG_BY_FAMILY;

    fn decode(payload: &[u8]) -> Option<Self> {
        Self::read_from_prefix(payload).ok().map(|(socket, _)| socket)
    }
}

/// Counts by state, in the order of [`STATES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StuckCounts([(u64, u64); STATES.len()]);

impl StuckCounts {
    /// Counts sockets in the calling thread's namespace; and answers that were skipped.
    ///
    /// # Errors
    /// If the kernel does not answer inet_diag requests.
    pub(super) fn read() -> io::Result<(Self, u64)> {
        let (mut counts, mut skipped) = (Self::default(), 0);
        for family in [libc::AF_INET, libc::AF_INET6] {
            let states = STATES.iter().map(|(number, _)| 1 << number).sum();
            let (family, protocol) = (family as u8, libc::IPPROTO_TCP as u8);
            let request = SocketsRequest { family, protocol, states, ..SocketsRequest::default() };
            let (sockets, others) = netlink::list::<SocketAnswer>(request)?;
            sockets.iter().for_each(|socket| counts.add(socket.state, socket.send_queue_bytes));
            skipped += others;
        }
        Ok((counts, skipped))
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
    use std::{
        io::Write as _,
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::host::netlink::tests::decoded;

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

    #[test]
    fn a_socket_is_counted_whatever_its_attributes_are_and_a_short_answer_costs_only_itself() {
        let socket = SocketAnswer { state: 4, send_queue_bytes: 77, ..SocketAnswer::default() };
        let mut payload = socket.as_bytes().to_vec();
        // An attribute that claims to be longer than the message.
        payload.extend([255, 255, 1, 0]);
        assert_eq!(decoded(SOCK_DIAG_BY_FAMILY, &payload), Some(socket));
        assert_eq!(decoded::<SocketAnswer>(SOCK_DIAG_BY_FAMILY, &payload[..71]), None);
        assert_eq!(decoded::<SocketAnswer>(0, &payload), None);
    }

    #[test]
    fn a_closed_connection_whose_peer_reads_nothing_is_stuck_in_fin_wait_1() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut sender = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let reader = listener.accept().expect("accepted");
        sender.set_nonblocking(true).expect("a socket");
        while sender.write(&[0; 65_536]).is_ok() {}
        drop(sender);
        let (counts, skipped) = StuckCounts::read().expect("inet_diag answers");
        let stuck = StuckCounts::sum([&counts]).into_iter().find(|stuck| stuck.state == "fin_wait_1");
        assert!(stuck.is_some_and(|stuck| stuck.sockets > 0 && stuck.send_queue_bytes > 0), "{counts:?}");
        assert_eq!(skipped, 0);
        drop(reader);
    }
}
