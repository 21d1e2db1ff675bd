//! Bursts of datagrams that only interrupts can preempt on their CPU, so that packets in a device's ring wait until the
//! burst is over.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tcpmon_tests::fifo::become_fifo;
use tcpmon_tests::traffic::plan::{Answer, BurstPlan, ProcessPlan};

use crate::gate::Instruction;
use crate::session::{Session, reply};

/// Room for a burst that the device does not take at once: a datagram of 200 bytes is accounted as about 800.
const SEND_BUFFER_BYTES: usize = 64 << 20;

pub fn run(plan: &BurstPlan) -> io::Result<()> {
    let process =
        ProcessPlan { comm: Some("burst".to_owned()), cpu: Some(plan.cpu), paused: true, ..ProcessPlan::default() };
    let session = Session::start(&process)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES)?;
    let datagram = vec![b'x'; plan.payload];
    session.obey(|_| None);
    become_fifo()?;
    reply(&Answer::Ready(plan.to.port()));
    let mut pass = session.gate.enter();
    let (mut left, mut paused) = (plan.bursts, true);
    loop {
        match pass.look() {
            Instruction::Allowed(bytes) => paused = bytes == 0,
            Instruction::Close => paused = true,
            Instruction::Same => {}
        }
        if paused || left == 0 {
            pass.done();
            pass.rest();
            continue;
        }
        let mut sent = 0;
        for _ in 0..plan.datagrams {
            sent += socket.send_to(&datagram, plan.to)?;
        }
        session.count(0, sent);
        left -= 1;
        thread::sleep(Duration::from_millis(plan.pause_ms));
    }
}
