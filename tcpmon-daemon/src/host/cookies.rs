//! Cookies of open TCP sockets. The kernel creates a socket's cookie when somebody first asks for it, and inet_diag
//! does so for each socket that it lists.

use std::io;

use tcpmon_common::tcp_state;

use super::{
    namespaces::{self, OriginalNamespace, Unread},
    netlink,
    stuck::{SocketAnswer, SocketsRequest},
};

/// LISTEN, and those in which a connection can have received something.
const STATES: [u32; 7] = [
    tcp_state::LISTEN,
    tcp_state::ESTABLISHED,
    tcp_state::FIN_WAIT1,
    tcp_state::FIN_WAIT2,
    tcp_state::CLOSE_WAIT,
    tcp_state::CLOSING,
    tcp_state::LAST_ACK,
];

/// Has the kernel create a cookie for each TCP socket that is open in a network namespace that tcpmon may enter.
/// Returns what it could not read, in words; empty if that is nothing.
///
/// # Errors
/// If the kernel does not answer inet_diag requests, or `/proc` cannot be read.
pub(crate) fn create() -> io::Result<String> {
    in_this_namespace()?;
    let found = namespaces::find()?;
    let original = OriginalNamespace::current()?;
    let mut unread = Unread::default();
    for (inode, path) in &found.others {
        let listed = original.run_in(path, in_this_namespace);
        let problem = |listed: io::Result<()>| listed.err().map_or_else(String::new, |error| error.to_string());
        unread.add(*inode, path, listed.map(problem));
    }
    Ok(unread.of(&found))
}

/// The same for the calling thread's network namespace.
fn in_this_namespace() -> io::Result<()> {
    for request in SocketsRequest::of_tcp(STATES.into_iter()) {
        netlink::list::<SocketAnswer>(request)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::{
        net::sockopt::socket_cookie,
        thread::{CpuSet, sched_getcpu, sched_setaffinity},
    };

    use super::*;

    #[test]
    fn each_open_socket_has_a_cookie_afterwards() {
        // Each CPU counts its cookies by itself.
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).expect("a thread may choose its CPU");
        let listener = TcpListener::bind("[::1]:0").expect("a listener");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let server = listener.accept().expect("a connection").0;
        in_this_namespace().expect("inet_diag answers");
        let later = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let later = socket_cookie(&later).expect("a cookie");
        let cookies = [socket_cookie(&listener), socket_cookie(&client), socket_cookie(&server)];
        assert!(cookies.iter().flatten().all(|cookie| *cookie < later), "{cookies:?} {later}");
    }
}
