//! Makes a lab with a reader and a sender, says where they are, and waits to be killed: the harness proves with it that
//! a killed run leaves nothing behind.

use tcpmon_tests::{Lab, Traffic};

fn main() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).paused().spawn();
    let _sender = Traffic::sender(lab.sender()).to(reader.address()).spawn();
    println!("LAB {} {} {}", lab.sender().path(), lab.sender().device, reader.pid());
    std::io::stdin().lines().for_each(drop);
}
