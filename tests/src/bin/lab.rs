//! Creates a lab with a reader and a sender, prints where they are, and waits to be killed. The harness uses it to
//! prove that a killed run leaves nothing behind.

use tcpmon_tests::{Lab, Traffic};

fn main() {
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).paused().spawn();
    let _sender = Traffic::sender(lab.sender()).to(reader.address()).spawn();
    println!("LAB {} {} {}", lab.sender().path(), lab.sender().device, reader.pid());
    std::io::stdin().lines().for_each(drop);
}
