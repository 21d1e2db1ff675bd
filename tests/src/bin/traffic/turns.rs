//! All connections in one epoll set, read by one thread or by several that take turns.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Error};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;
use tcpmon_tests::traffic::plan::ReaderPlan;

use crate::connection::{Connection, Outcome};
use crate::gate::{Instruction, Registration, UNLIMITED};
use crate::reader::is_passing;
use crate::session::{Session, lock};

/// Reads until the plan's connections have ended.
pub fn run(session: &'static Session, plan: &ReaderPlan, listeners: Vec<Socket>, threads: usize) -> io::Result<()> {
    let table =
        Turns { table: Mutex::new(Table { whose: 0, set: Set::new(session, plan, listeners)? }), next: Condvar::new() };
    let threads = threads.max(1);
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|me| {
                let table = &table;
                scope.spawn(move || table.play(me, threads))
            })
            .collect();
        let mut outcome = table.play(0, threads);
        lock(&table.table).set.pass.take_over(); // a kick must not go to a thread that has been joined
        for other in others {
            outcome = outcome.and(other.join().unwrap_or_else(|_| Err(Error::other("a reading thread has panicked"))));
        }
        outcome
    })
}

struct Turns<'p> {
    table: Mutex<Table<'p>>,
    next: Condvar,
}

struct Table<'p> {
    whose: usize,
    set: Set<'p>,
}

impl Turns<'_> {
    /// Takes a step whenever it is this thread's turn. The other threads wait for their turn outside the epoll set.
    fn play(&self, me: usize, players: usize) -> io::Result<()> {
        loop {
            let table = lock(&self.table);
            let waited = self.next.wait_while(table, |table| table.whose != me && !table.set.over);
            let mut table = waited.unwrap_or_else(PoisonError::into_inner);
            if table.set.over {
                return Ok(());
            }
            if players > 1 {
                table.set.pass.take_over();
            }
            let moved = table.set.advance();
            table.set.over |= moved.is_err();
            if !matches!(moved, Ok(false)) {
                table.whose = (me + 1) % players;
                self.next.notify_all();
            }
            moved?;
        }
    }
}

/// The sockets, and how many bytes each may still read.
struct Set<'p> {
    session: &'static Session,
    plan: &'p ReaderPlan,
    epoll: Epoll,
    listeners: Vec<Socket>,
    flows: HashMap<u64, Flow>,
    ready: VecDeque<u64>,
    buffer: Vec<u8>,
    pass: Registration<'static>,
    allowance: u64,
    accepted: u64,
    over: bool,
}

struct Flow {
    connection: Connection,
    left: u64,
    watched: bool,
}

/// Tokens from here on are listening sockets, those below are connections.
const LISTENERS: u64 = 1 << 63;

impl<'p> Set<'p> {
    fn new(session: &'static Session, plan: &'p ReaderPlan, listeners: Vec<Socket>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (listener, token) in listeners.iter().zip(LISTENERS..) {
            epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        Ok(Self {
            session,
            plan,
            epoll,
            listeners,
            flows: HashMap::new(),
            ready: VecDeque::new(),
            buffer: vec![0; plan.chunk],
            pass: session.gate.enter(),
            allowance: 0,
            accepted: 0,
            over: false,
        })
    }

    /// Reads one chunk, accepts, or waits; true when a chunk was read or everything is over.
    fn advance(&mut self) -> io::Result<bool> {
        if let Instruction::Allowed(bytes) = self.pass.look() {
            self.allow(bytes)?;
        }
        if self.is_done() {
            self.pass.done();
        }
        let Some(token) = self.ready.pop_front() else {
            return self.wait().map(|()| false);
        };
        if token >= LISTENERS { self.accept(token).map(|()| self.over) } else { self.read(token) }
    }

    /// Whether no connection may read any more; a limit above 0 waits for the first connection.
    fn is_done(&self) -> bool {
        let exhausted = || self.accepted > 0 && self.flows.values().all(|flow| flow.left == 0);
        self.allowance == 0 || (self.allowance != UNLIMITED && exhausted())
    }

    fn allow(&mut self, bytes: u64) -> io::Result<()> {
        self.allowance = bytes;
        self.ready.clear();
        for (number, flow) in &mut self.flows {
            flow.left = bytes;
            flow.watch(&self.epoll, *number, bytes > 0)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); 64];
        match self.epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => self.ready.extend(events[..count].iter().map(EpollEvent::data)),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn accept(&mut self, token: u64) -> io::Result<()> {
        let listener = &self.listeners[(token - LISTENERS) as usize];
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if is_passing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let number = self.accepted;
        self.accepted += 1;
        if self.plan.close_at_once {
            drop(socket);
            return self.ended(number, true);
        }
        socket.set_nonblocking(true)?;
        let connection = Connection::new(self.session, self.plan, number, socket)?;
        let mut flow = Flow { connection, left: self.allowance, watched: false };
        flow.watch(&self.epoll, number, self.allowance > 0)?;
        self.flows.insert(number, flow);
        Ok(())
    }

    fn read(&mut self, number: u64) -> io::Result<bool> {
        let Some(flow) = self.flows.get_mut(&number).filter(|flow| flow.left > 0) else {
            return Ok(false);
        };
        match flow.connection.read(flow.left, &mut self.buffer) {
            Outcome::Again => return Ok(false),
            Outcome::Bytes(bytes) if flow.left != UNLIMITED => {
                flow.left -= bytes;
                if flow.left == 0 {
                    flow.watch(&self.epoll, number, false)?;
                }
            }
            Outcome::Bytes(_) => {}
            Outcome::End(well) => {
                flow.watch(&self.epoll, number, false)?;
                self.flows.remove(&number);
                self.ended(number, well)?;
                return Ok(self.over);
            }
        }
        Ok(true)
    }

    fn ended(&mut self, number: u64, well: bool) -> io::Result<()> {
        let ended = self.session.end(number, well);
        self.over = self.plan.connections == Some(ended);
        Ok(())
    }
}

impl Flow {
    /// Adds the connection to the epoll set, or removes it. (It is removed because epoll would report a reset even when
    /// no events are requested.)
    fn watch(&mut self, epoll: &Epoll, number: u64, wanted: bool) -> io::Result<()> {
        let socket = self.connection.socket.as_fd();
        match (self.watched, wanted) {
            (false, true) => epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?,
            (true, false) => epoll.delete(socket)?,
            _ => {}
        }
        self.watched = wanted;
        Ok(())
    }
}
