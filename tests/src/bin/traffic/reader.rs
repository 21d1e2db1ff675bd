//! The reader: listens, accepts, and reads with blocking calls (for epoll, see `turns`).

use std::io::{self, Error, ErrorKind};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, process, thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, fork};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};
use tcpmon_tests::free_port;
use tcpmon_tests::traffic::plan::{Answer, ExecPlan, KERNELS_CHOICE, Order, ProcessPlan, ReaderPlan, Threads};

use crate::connection::{Connection, Outcome};
use crate::gate::{Instruction, UNLIMITED};
use crate::option::set_tcp_option;
use crate::session::{Session, lock, reply};
use crate::turns;

const BACKLOG: i32 = 65_535;

pub fn run(plan: &ReaderPlan) -> io::Result<()> {
    let session = Session::start(&plan.process)?;
    let listeners = listen(plan)?;
    obey(session, plan);
    let first = listeners[0].local_addr()?.as_socket().expect("it is an IP socket").port();
    reply(&Answer::Ready(first));
    match plan.threads {
        Threads::Sequential | Threads::PerFlow | Threads::Fork => accept_all(session, plan, &listeners)?,
        Threads::Epoll => turns::run(session, plan, listeners, 1)?,
        Threads::Turns(threads) => turns::run(session, plan, listeners, threads)?,
    }
    session.finish()
}

fn obey(session: &'static Session, plan: &ReaderPlan) {
    let plan = plan.clone();
    session.obey(move |order| match order {
        Order::Peek(bytes) => Some(peek(session, bytes)),
        Order::ShutdownWrite => Some(shutdown_write(session)),
        Order::Exec => exec(session, &plan),
        _ => None,
    });
}

/// Executes another program, which continues in [`resume`]; returns only if that fails.
fn exec(session: &Session, plan: &ReaderPlan) -> Option<u64> {
    let socket = lock(&session.connections).get(&0).cloned()?;
    socket.set_cloexec(false).ok()?;
    let plan = ExecPlan { reader: plan.clone(), descriptor: socket.as_raw_fd() };
    let plan = serde_json::to_string(&plan).ok()?;
    let error = Command::new(env::current_exe().ok()?).args(["executed", &plan]).exec();
    eprintln!("exec: {error}");
    None
}

/// Continues to read from an inherited connection.
#[expect(unsafe_code, reason = "the descriptor comes as a number")]
pub fn resume(plan: &ExecPlan) -> io::Result<()> {
    // Keeps the name that exec gave the process.
    let process = ProcessPlan { comm: None, paused: true, ..plan.reader.process.clone() };
    let session = Session::start(&process)?;
    obey(session, &plan.reader);
    // SAFETY: the descriptor was left open for this program alone.
    let socket = unsafe { Socket::from_raw_fd(plan.descriptor) };
    let connection = Connection::new(session, &plan.reader, 0, socket)?;
    reply(&Answer::Done(0));
    read_all(session, &connection, plan.reader.chunk);
    session.finish()
}

/// Accepts all connections of the plan. Each is read here, or on its own thread, or by its own process.
fn accept_all(session: &'static Session, plan: &ReaderPlan, listeners: &[Socket]) -> io::Result<()> {
    let (mut threads, chunk) = (Vec::new(), plan.chunk);
    for number in 0..plan.connections.unwrap_or(u64::MAX) {
        let socket = accept(listeners)?;
        if plan.close_at_once {
            drop(socket);
            session.end(number, true);
            continue;
        }
        let connection = Connection::new(session, plan, number, socket)?;
        if plan.threads == Threads::Fork {
            fork_for(session, &connection, chunk)?;
        } else if plan.threads == Threads::PerFlow {
            threads.retain(|thread: &thread::JoinHandle<()>| !thread.is_finished());
            threads.push(thread::Builder::new().spawn(move || read_all(session, &connection, chunk))?);
        } else {
            read_all(session, &connection, chunk);
        }
    }
    for thread in threads {
        thread.join().map_err(|_| Error::other("a reading thread has panicked"))?;
    }
    Ok(())
}

/// Forks a process that reads the connection to its end, and ends with this one.
#[expect(unsafe_code, reason = "the child has one thread only")]
fn fork_for(session: &'static Session, connection: &Connection, chunk: usize) -> io::Result<()> {
    // SAFETY: the only other thread, which carries out orders, holds a lock only while it carries out one.
    if let ForkResult::Child = unsafe { fork() }? {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        read_all(session, connection, chunk);
        process::exit(0);
    }
    Ok(())
}

/// Reads a connection to its end, as far as the gate allows.
fn read_all(session: &'static Session, connection: &Connection, chunk: usize) {
    let mut buffer = vec![0; chunk];
    let mut pass = session.gate.enter();
    let mut allowance = 0;
    let well = loop {
        match pass.look() {
            Instruction::Same => {}
            Instruction::Allowed(bytes) => allowance = bytes,
            Instruction::Close => break true,
        }
        if allowance == 0 {
            pass.rest();
            continue;
        }
        match connection.read(allowance, &mut buffer) {
            Outcome::Bytes(bytes) if allowance != UNLIMITED => allowance -= bytes,
            Outcome::Bytes(_) | Outcome::Again => {}
            Outcome::End(well) => break well,
        }
    };
    session.end(connection.number, well);
}

/// Waits for the next connection on any of the ports.
fn accept(listeners: &[Socket]) -> io::Result<Socket> {
    loop {
        let mut ready: Vec<PollFd<'_>> =
            listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut ready, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            outcome => outcome?,
        };
        for (listener, _) in listeners.iter().zip(&ready).filter(|(_, ready)| ready.any() == Some(true)) {
            match listener.accept() {
                Ok((socket, _)) => return Ok(socket),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether accept may simply be tried again: the connection is gone, or another caller was faster.
pub fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

fn listen(plan: &ReaderPlan) -> io::Result<Vec<Socket>> {
    let mut listeners = Vec::new();
    for index in 0..plan.ports.max(1) {
        let port = match plan.port {
            KERNELS_CHOICE => 0,
            0 => free_port()?,
            first => first + index,
        };
        let address = SocketAddr::new(plan.bind, port);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if plan.bind.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        if let Some(bytes) = plan.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(n) = plan.drop_one_in {
            socket.attach_filter(&lossy(n))?;
        }
        if plan.fast_open {
            set_tcp_option(&socket, libc::TCP_FASTOPEN, 1024)?;
        }
        if plan.defer_accept {
            // For this many seconds, an ACK without data does not complete a handshake (tcp_check_req).
            set_tcp_option(&socket, libc::TCP_DEFER_ACCEPT, 60)?;
        }
        socket.bind(&SockAddr::from(address))?;
        socket.set_nonblocking(true)?;
        socket.listen(BACKLOG)?;
        listeners.push(socket);
    }
    Ok(listeners)
}

/// A socket filter (inherited by accepted connections) that drops one in `n` segments that carry data, at random.
fn lossy(n: u32) -> [SockFilter; 7] {
    const LOAD_LENGTH: u16 = 0x80; // BPF_LD | BPF_W | BPF_LEN: TCP header and payload
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const MODULO: u16 = 0x94; // BPF_ALU | BPF_MOD | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const RANDOM: u32 = 0xffff_f000 + 56; // SKF_AD_OFF + SKF_AD_RANDOM
    const HEADER: u32 = 60;
    [
        SockFilter::new(LOAD_LENGTH, 0, 0, 0),
        SockFilter::new(JUMP_GREATER, 0, 3, HEADER),
        SockFilter::new(LOAD_WORD, 0, 0, RANDOM),
        SockFilter::new(MODULO, 0, 0, n),
        SockFilter::new(JUMP_EQUAL, 1, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

fn peek(session: &Session, bytes: u64) -> u64 {
    let size = usize::try_from(bytes).unwrap_or(usize::MAX).min(64 << 20);
    let mut buffer = vec![MaybeUninit::uninit(); size];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let connections = lock(&session.connections);
    connections.values().filter_map(|socket| socket.recv_with_flags(&mut buffer, flags).ok()).sum::<usize>() as u64
}

fn shutdown_write(session: &Session) -> u64 {
    let connections = lock(&session.connections);
    connections.values().filter(|socket| socket.shutdown(Shutdown::Write).is_ok()).count() as u64
}
