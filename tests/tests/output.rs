//! `tcpmon trace` as a command: how it ends, in which namespaces it runs, and to which outputs it writes.

mod common;
#[path = "output/disk.rs"]
mod disk;
#[path = "output/ends.rs"]
mod ends;
#[path = "output/flight.rs"]
mod flight;
#[path = "output/namespaces.rs"]
mod namespaces;
#[path = "output/rotate.rs"]
mod rotate;
#[path = "output/unread.rs"]
mod unread;
