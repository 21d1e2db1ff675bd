//! Orphaned sockets that cannot get rid of the data in their send queues.

use crate::fault::DEADLINE;
use crate::lab::Lab;
use crate::traffic::{Reader, Threads, Traffic};
use crate::truth::{self, Socket, State};
use crate::{Namespace, equal, eventually};

/// Bytes that each connection has to send when its path breaks.
const WAITING: u64 = 100_000;

/// Orphans in FIN_WAIT1 with a full send queue: their process has ended, and what they sent is never acknowledged.
///
/// The receiver's end drops every segment. A namespace lives as long as a socket in it, so dropping the lab is not
/// enough: the orphans would retransmit for another minute or two (`tcp_orphan_retries`). A RST ends them at once. A
/// reader sends one when it is killed with unread data, so one byte is sent before the path breaks. Another process
/// stays in the senders' namespace, because nobody could find the namespace without a process.
#[derive(Debug)]
pub struct StuckSockets {
    _reader: Reader,
    _bystander: Reader,
    lab: Lab,
    connections: usize,
}

impl StuckSockets {
    /// Creates this many stuck sockets; they are stuck when this returns.
    #[track_caller]
    pub fn new(connections: usize) -> Self {
        let lab = Lab::new();
        let count = connections as u64;
        let reader = Traffic::reader(lab.receiver()).comm("fault-orphan").paused().connections(count);
        let reader = reader.threads(Threads::Epoll).spawn();
        let sender = Traffic::sender(lab.sender()).comm("fault-orphan").to(reader.address()).flows(count).paused();
        // A send buffer grows only with acknowledgements, and there will be none.
        let sender = sender.send_buffer(2 * WAITING as usize).spawn();
        sender.send(1);
        let arrived = || {
            let sockets = truth::sockets(lab.receiver());
            sockets.iter().filter(|socket| socket.is_connection_to(reader.port()) && socket.recv_q == 1).count()
        };
        eventually(DEADLINE, "a byte has arrived on each connection", || equal(arrived(), connections));
        lab.drop_all();
        sender.send(WAITING);
        sender.exit();
        let bystander = Traffic::reader(lab.sender()).paused().spawn();
        let stuck = Self { _reader: reader, _bystander: bystander, lab, connections };
        eventually(DEADLINE, "every socket is an orphan in FIN_WAIT1 with a full send queue", || {
            let sockets = stuck.sockets();
            if sockets.len() == stuck.connections { Ok(()) } else { Err(format!("{sockets:?}")) }
        });
        stuck
    }

    /// The namespace that they are in.
    pub fn namespace(&self) -> &Namespace {
        self.lab.sender()
    }

    /// The sockets that are stuck now, by inet_diag: in FIN_WAIT1, held by no process, with data in the send queue.
    pub fn sockets(&self) -> Vec<Socket> {
        stuck_in(self.lab.sender())
    }
}

fn stuck_in(namespace: &Namespace) -> Vec<Socket> {
    let mut sockets = truth::sockets(namespace);
    sockets.retain(|socket| socket.state == State::FinWait1 && socket.inode == 0 && socket.send_q > 0);
    sockets
}
