//! TCP sockets of a namespace, by inet_diag: what `ss -tmnei` shows, without `ss`.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::{MemInfo, Nla};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags};
use nix::sys::socket::SockProtocol;

use crate::{Namespace, must, netlink};

/// A TCP state, with the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of RFC 9293")]
pub enum State {
    Established = 1,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    NewSynReceived,
}

/// One TCP socket at one moment.
#[derive(Clone, Debug)]
pub struct Socket {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Its state.
    pub state: State,
    /// The kernel's cookie, which `ss` shows as `sk:`.
    pub cookie: u64,
    /// Inode of its descriptor; 0 once no process holds the socket.
    pub inode: u32,
    /// Bytes received in order and not read: `rcv_nxt - copied_seq` (for a listening socket: connections not accepted).
    pub recv_q: u32,
    /// Bytes sent and not acknowledged.
    pub send_q: u32,
    /// `sk_rmem_alloc`, which ss shows as `skmem:(r`.
    pub rmem: u32,
    /// `sk_rcvbuf`, which ss shows as `rb`.
    pub rcvbuf: u32,
    /// Bytes in the socket's backlog, which ss shows as `bl`.
    pub backlog: u32,
    /// Segments that the socket itself dropped, which ss shows as `d`.
    pub drops: u32,
    /// `struct tcp_info`, empty if the socket has none (TIME_WAIT).
    pub info: TcpInfo,
}

/// The fields of `struct tcp_info` that concern receiving (and a few that concern sending); 0 if the kernel is too old
/// to have the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The receiver's estimate of the sender's MSS, in bytes.
    pub rcv_mss: u32,
    /// Limit of the window that memory allows, in bytes.
    pub rcv_ssthresh: u32,
    /// The receiver's round trip time, in microseconds.
    pub rcv_rtt_us: u32,
    /// Target of autotuning, in bytes per round trip.
    pub rcv_space: u32,
    /// Payload bytes received in order (a FIN counts as one byte).
    pub bytes_received: u64,
    /// Payload bytes that the other side has acknowledged.
    pub bytes_acked: u64,
    /// All segments sent.
    pub segs_out: u32,
    /// All segments received.
    pub segs_in: u32,
    /// Segments received that carry payload (each part of a segment that GRO merged counts).
    pub data_segs_in: u32,
    /// Segments that arrived out of order (Linux 5.4).
    pub rcv_ooopack: u32,
    /// Advertised window in bytes; `None` before Linux 6.2.
    pub rcv_wnd: Option<u32>,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// The window that the other side advertised last, in bytes (Linux 5.4).
    pub snd_wnd: u32,
    /// Least round trip time of the sending side, in microseconds.
    pub min_rtt_us: u32,
    /// Time in which the receiver's window limited this sender, in microseconds.
    pub rwnd_limited_us: u64,
}

/// All TCP sockets of a namespace, IPv4 and IPv6, in every state.
pub fn sockets(namespace: &Namespace) -> Vec<Socket> {
    namespace.run(|| {
        let families = [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())];
        families.into_iter().flat_map(|(family, socket_id)| dump(family, socket_id)).collect()
    })
}

impl Socket {
    /// Whether this is a connection with `port` as its local port.
    pub fn is_connection_to(&self, port: u16) -> bool {
        self.local.port() == port && self.state != State::Listen
    }
}

fn dump(family: u8, socket_id: SocketId) -> Vec<Socket> {
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO | ExtensionFlags::SKMEMINFO,
        states: StateFlags::from_bits_retain(u32::MAX),
        socket_id,
    };
    let answers = must(
        netlink::dump(SockProtocol::NetlinkSockDiag, SockDiagMessage::InetRequest(request)),
        "listing TCP sockets",
    );
    let responses = answers.into_iter().filter_map(|answer| match answer {
        SockDiagMessage::InetResponse(response) => Some(*response),
        _ => None,
    });
    responses.map(socket).collect()
}

fn socket(response: InetResponse) -> Socket {
    let header = response.header;
    let id = header.socket_id;
    let mut memory = MemInfo {
        receive_queue: 0,
        receive_queue_max: 0,
        send_queue: 0,
        send_queue_max: 0,
        bottom_send_queues: 0,
        cache: 0,
        options: 0,
        backlog_queue_length: 0,
        drops: 0,
    };
    let mut info = TcpInfo::default();
    for attribute in response.nlas {
        match attribute {
            Nla::MemInfo(found) => memory = found,
            Nla::TcpInfo(bytes) => info = TcpInfo::parse(&bytes),
            _ => {}
        }
    }
    Socket {
        local: address(id.source_address, id.source_port),
        remote: address(id.destination_address, id.destination_port),
        state: State::parse(header.state),
        cookie: u64::from_ne_bytes(id.cookie),
        inode: header.inode,
        recv_q: header.recv_queue,
        send_q: header.send_queue,
        rmem: memory.receive_queue,
        rcvbuf: memory.receive_queue_max,
        backlog: memory.backlog_queue_length,
        drops: memory.drops,
        info,
    }
}

/// The address; an IPv4-mapped address becomes the IPv4 address.
fn address(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip.to_canonical(), port)
}

impl State {
    fn parse(number: u8) -> Self {
        const ALL: [State; 12] = [
            State::Established,
            State::SynSent,
            State::SynReceived,
            State::FinWait1,
            State::FinWait2,
            State::TimeWait,
            State::Close,
            State::CloseWait,
            State::LastAck,
            State::Listen,
            State::Closing,
            State::NewSynReceived,
        ];
        let found = ALL.into_iter().find(|state| *state as u8 == number);
        found.unwrap_or_else(|| panic!("the kernel reports TCP state {number}, which is unknown here"))
    }
}

impl TcpInfo {
    /// Parses `struct tcp_info` of include/uapi/linux/tcp.h, which only ever grows at its end.
    fn parse(bytes: &[u8]) -> Self {
        let u32_at =
            |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |raw| u32::from_ne_bytes(*raw));
        let u64_at =
            |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |raw| u64::from_ne_bytes(*raw));
        Self {
            rcv_mss: u32_at(20),
            rcv_ssthresh: u32_at(64),
            rcv_rtt_us: u32_at(92),
            rcv_space: u32_at(96),
            bytes_acked: u64_at(120),
            bytes_received: u64_at(128),
            segs_out: u32_at(136),
            segs_in: u32_at(140),
            data_segs_in: u32_at(152),
            unacked: u32_at(24),
            snd_wnd: u32_at(228),
            min_rtt_us: u32_at(148),
            rwnd_limited_us: u64_at(176),
            rcv_ooopack: u32_at(224),
            rcv_wnd: (bytes.len() >= 236).then(|| u32_at(232)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_tcp_info_of_an_old_kernel_is_read_as_far_as_it_goes() {
        let mut bytes = vec![0; 136];
        bytes[128] = 7;
        let info = TcpInfo::parse(&bytes);
        assert_eq!(info, TcpInfo { bytes_received: 7, ..TcpInfo::default() });
    }
}
