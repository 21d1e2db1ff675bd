//! What the claims share.
#![allow(dead_code, reason = "each claim uses a part of it")]

use std::time::Duration;

use tcpmon_tests::traffic::{Reader, SenderBuilder};
use tcpmon_tests::truth::{self, Socket};
use tcpmon_tests::{Lab, Traffic};

/// Time for something that takes milliseconds to show.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A sender towards a reader.
pub fn sender(lab: &Lab, reader: &Reader) -> SenderBuilder {
    Traffic::sender(lab.sender()).to(reader.address())
}

/// Labels of the group of a reader by its name and port.
pub fn group(comm: &str, port: u16) -> [(&'static str, &'static str); 2] {
    // Leaked: a few bytes a test, for labels that can be written in place.
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    [("process", leak(comm.to_owned())), ("service", leak(format!("local:{port}")))]
}

/// The receiver's side of the reader's only connection, as inet_diag has it.
pub fn connection(lab: &Lab, reader: &Reader) -> Result<Socket, String> {
    let mut sockets = truth::sockets(lab.receiver());
    sockets.retain(|socket| socket.is_connection_to(reader.port()));
    if sockets.len() == 1 { Ok(sockets.remove(0)) } else { Err(format!("{sockets:?}")) }
}

/// Whether exactly `bytes` wait in the reader's only connection.
pub fn queued(lab: &Lab, reader: &Reader, bytes: u32) -> Result<Socket, String> {
    let socket = connection(lab, reader)?;
    if socket.recv_q == bytes { Ok(socket) } else { Err(format!("{socket:?}")) }
}
