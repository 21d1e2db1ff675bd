//! The sender: connects, writes at its rate as far as the gate allows, and closes.

use std::io::{self, Error, ErrorKind, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tcpmon_tests::traffic::plan::{Answer, Order, SenderPlan};

use crate::gate::{Instruction, Registration, UNLIMITED};
use crate::option::{set_tcp_option, unacknowledged};
use crate::session::{Session, reply};

pub fn run(plan: &SenderPlan) -> io::Result<()> {
    let session = Session::start(&plan.process)?;
    let parallel = plan.parallel.clamp(1, plan.connections.max(1));
    let begun = Barrier::new(usize::try_from(parallel).map_err(Error::other)?);
    session.obey(|order| match order {
        Order::Finish => {
            session.gate.close();
            Some(0)
        }
        _ => None,
    });
    thread::scope(|scope| {
        for worker in 1..parallel {
            let begun = &begun;
            thread::Builder::new().spawn_scoped(scope, move || work(session, plan, worker, parallel, begun))?;
        }
        work(session, plan, 0, parallel, &begun);
        io::Result::Ok(())
    })?;
    session.finish()
}

/// Makes every `parallel`th connection. The process is ready when each worker has started its first connection.
fn work(session: &'static Session, plan: &SenderPlan, worker: u64, parallel: u64, begun: &Barrier) {
    let mut pass = session.gate.enter();
    let (mut allowance, mut held) = (0, Vec::new());
    let message = vec![b'x'; plan.message.max(1)];
    for number in (worker..plan.connections).step_by(parallel as usize) {
        let address = SocketAddr::new(plan.to.ip(), plan.to.port() + (number % u64::from(plan.ports.max(1))) as u16);
        let socket = connect(plan, address).map(Arc::new);
        if let Ok(socket) = &socket {
            session.begin(number, socket);
        }
        if number == worker && begun.wait().is_leader() {
            reply(&Answer::Ready(address.port()));
        }
        let flow = |socket: Arc<Socket>| Flow { session, plan, number, socket, address, message: &message, sent: 0 };
        let outcome = socket.map(flow).and_then(|mut flow| {
            let proceed = flow.pump(&mut pass, &mut allowance)?;
            let hold = proceed && plan.hold_open;
            Ok(hold || flow.close(&mut pass, &mut allowance)? && proceed)
        });
        match &outcome {
            Ok(true) if plan.hold_open => held.push(number),
            ended => {
                session.end(number, ended.is_ok());
            }
        }
        if matches!(outcome, Ok(false)) {
            break;
        }
    }
    while !held.is_empty() {
        match pass.look() {
            Instruction::Close => {
                for number in held.drain(..) {
                    session.end(number, true);
                }
            }
            Instruction::Same | Instruction::Allowed(_) => pass.rest(),
        }
    }
}

fn connect(plan: &SenderPlan, address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    if let Some(bytes) = plan.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(name) = &plan.congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if plan.reset {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    if plan.data_with_ack {
        // On a client this option makes the kernel hold back the handshake's last ACK (tcp_rcv_synsent_state_process).
        set_tcp_option(&socket, libc::TCP_DEFER_ACCEPT, 1)?;
    }
    if !plan.fast_open {
        socket.connect(&SockAddr::from(address))?;
    }
    Ok(socket)
}

struct Flow<'a> {
    session: &'static Session,
    plan: &'a SenderPlan,
    number: u64,
    socket: Arc<Socket>,
    address: SocketAddr,
    message: &'a [u8],
    sent: u64,
}

impl Flow<'_> {
    /// Writes the plan's bytes; false when told to finish.
    fn pump(&mut self, pass: &mut Registration<'_>, allowance: &mut u64) -> io::Result<bool> {
        let mut pace = (Instant::now(), 0);
        loop {
            match pass.look() {
                Instruction::Same => {}
                Instruction::Allowed(bytes) => {
                    *allowance = bytes;
                    pace = (Instant::now(), self.sent);
                }
                Instruction::Close => return Ok(false),
            }
            let left = self.plan.bytes.map_or(UNLIMITED, |bytes| bytes - self.sent);
            if left == 0 {
                return Ok(true);
            }
            if *allowance == 0 {
                pass.rest();
                continue;
            }
            if let Some(rate) = self.plan.rate {
                let due = pace.0 + Duration::from_secs_f64((self.sent - pace.1) as f64 / rate as f64);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let most = left.min(*allowance).min(self.message.len() as u64) as usize;
            match self.write(&self.message[..most]) {
                Ok(bytes) => {
                    self.sent += bytes as u64;
                    self.session.count(self.number, bytes);
                    if *allowance != UNLIMITED {
                        *allowance -= bytes as u64;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.plan.fast_open && self.sent == 0 {
            self.socket.send_to_with_flags(bytes, &SockAddr::from(self.address), libc::MSG_FASTOPEN)
        } else {
            (&*self.socket).write(bytes)
        }
    }

    /// Ends the connection and, if the plan asks for it, waits until the other side has ended it, too. False when told
    /// to finish.
    fn close(&self, pass: &mut Registration<'_>, allowance: &mut u64) -> io::Result<bool> {
        let mut proceed = true;
        pass.done();
        if self.plan.reset {
            while unacknowledged(&self.socket)? > 0 {
                thread::sleep(Duration::from_micros(20));
            }
        } else if self.plan.await_close {
            self.socket.shutdown(Shutdown::Write)?;
            let mut rest = [MaybeUninit::uninit(); 4096];
            loop {
                match self.socket.recv(&mut rest) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                    Err(_) => match pass.look() {
                        Instruction::Same => {}
                        Instruction::Close => proceed = false,
                        Instruction::Allowed(bytes) => {
                            *allowance = bytes;
                            pass.done();
                        }
                    },
                }
            }
        }
        Ok(proceed)
    }
}
