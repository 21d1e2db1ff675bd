//! What every role shares: the process's settings, its count of bytes, and the orders from stdin.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{self, BufRead, Error, Write};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{process, thread};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, gettid};
use socket2::Socket;
use tcpmon_tests::clock::monotonic_ns;
use tcpmon_tests::traffic::plan::{Answer, Call, Order, ProcessPlan, Report};

use crate::gate::{Gate, UNLIMITED, let_kicks_interrupt};

/// The state of this process, which lives until it exits.
pub struct Session {
    /// Controls how many bytes each connection may move.
    pub gate: Gate,
    /// Open connections, by number.
    pub connections: Mutex<HashMap<u64, Arc<Socket>>>,
    moved: AtomicU64,
    report: Mutex<Report>,
    log: bool,
    obeying: Mutex<()>,
}

impl Session {
    /// Applies the plan's name, CPU and priority.
    pub fn start(plan: &ProcessPlan) -> io::Result<&'static Self> {
        if let Some(comm) = &plan.comm {
            prctl::set_name(&CString::new(comm.as_str())?)?;
        }
        if let Some(cpu) = plan.cpu {
            let mut cpus = CpuSet::new();
            cpus.set(cpu)?;
            sched_setaffinity(Pid::from_raw(0), &cpus)?;
        }
        if plan.nice != 0 {
            set_nice(plan.nice)?;
        }
        raise_file_limit()?;
        let_kicks_interrupt()?;
        Ok(Box::leak(Box::new(Self {
            gate: Gate::new(if plan.paused { 0 } else { UNLIMITED }),
            connections: Mutex::default(),
            moved: AtomicU64::new(0),
            report: Mutex::new(Report { pid: process::id(), ..Report::default() }),
            log: plan.log,
            obeying: Mutex::default(),
        })))
    }

    /// Carries out orders from stdin on a separate thread, and passes orders that it does not know to `role`. Exits
    /// when stdin closes.
    pub fn obey(&'static self, role: impl Fn(Order) -> Option<u64> + Send + 'static) {
        thread::spawn(move || {
            for text in io::stdin().lock().lines().map_while(Result::ok) {
                let _obeying = lock(&self.obeying);
                let answer = match serde_json::from_str(&text) {
                    Ok(order) => self.carry_out(order, &role),
                    Err(error) => Answer::Failed(format!("{error} in {text:?}")),
                };
                reply(&answer);
                if let Answer::Failed(_) | Answer::Finished(_) = answer {
                    process::exit(0);
                }
            }
            process::exit(0);
        });
    }

    /// Counts a call that moved bytes.
    pub fn count(&self, connection: u64, bytes: usize) {
        let (tid, bytes) = (gettid().as_raw().cast_unsigned(), bytes as u64);
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        let mut report = lock(&self.report);
        let at_ns = monotonic_ns(); // taken under the lock, so that the log is in order of time
        report.bytes += bytes;
        report.calls += 1;
        report.last_ns = at_ns;
        if report.first_ns == 0 {
            report.first_ns = at_ns;
        }
        if !report.tids.contains(&tid) && report.tids.len() < 1024 {
            report.tids.push(tid);
        }
        if self.log {
            report.log.push(Call { at_ns, tid, connection, bytes });
        }
    }

    /// Records the start of a connection.
    pub fn begin(&self, connection: u64, socket: &Arc<Socket>) {
        lock(&self.connections).insert(connection, Arc::clone(socket));
    }

    /// Records the end of a connection, successful or not; returns how many have ended.
    pub fn end(&self, connection: u64, well: bool) -> u64 {
        lock(&self.connections).remove(&connection);
        let mut report = lock(&self.report);
        report.connections += 1;
        report.broken += u64::from(!well);
        report.connections
    }

    /// Sends the last report, once no order is being carried out, and exits.
    pub fn finish(&self) -> ! {
        let _obeying = lock(&self.obeying);
        reply(&Answer::Finished(lock(&self.report).clone()));
        process::exit(0);
    }

    fn carry_out(&self, order: Order, role: impl Fn(Order) -> Option<u64>) -> Answer {
        match order {
            Order::Pause => Answer::Done(self.limit(0)),
            Order::Resume => Answer::Done(self.limit(UNLIMITED)),
            Order::Move(bytes) => Answer::Done(self.limit(bytes)),
            Order::SendByte => Answer::Done(self.send_byte_on_all()),
            Order::Receive => Answer::Done(self.receive_on_all()),
            Order::Rename => rename("renamed").map_or_else(|error| Answer::Failed(error.to_string()), Answer::Done),
            Order::Report => Answer::Report(lock(&self.report).clone()),
            Order::Exit => Answer::Finished(lock(&self.report).clone()),
            order => role(order).map_or_else(|| Answer::Failed(format!("cannot {order:?}")), Answer::Done),
        }
    }

    /// Writes a byte on each connection.
    fn send_byte_on_all(&self) -> u64 {
        let connections = lock(&self.connections);
        connections.values().filter_map(|socket| socket.send(b"x").ok()).sum::<usize>() as u64
    }

    /// Reads what has arrived on each connection.
    fn receive_on_all(&self) -> u64 {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut hear = |socket: &Arc<Socket>| socket.recv_with_flags(&mut buffer, libc::MSG_DONTWAIT).ok();
        lock(&self.connections).values().filter_map(&mut hear).sum::<usize>() as u64
    }

    /// Sets the gate's limit and returns the bytes that were moved until all workers had carried it out.
    fn limit(&self, bytes: u64) -> u64 {
        let before = self.moved.load(Ordering::Relaxed);
        self.gate.set(bytes);
        self.moved.load(Ordering::Relaxed) - before
    }
}

/// Sets the name of the process, which is the name of its first thread.
fn rename(name: &str) -> io::Result<u64> {
    std::fs::write(format!("/proc/self/task/{}/comm", process::id()), name)?;
    Ok(0)
}

/// Writes a line to stdout. If the harness is gone, nobody needs the answer.
pub fn reply(answer: &Answer) {
    let mut text = serde_json::to_string(answer).expect("an answer is plain data");
    text.push('\n');
    if io::stdout().lock().write_all(text.as_bytes()).is_err() {
        process::exit(1);
    }
}

/// Locks, also after a panic in another thread: the data are still usable.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes room for 100,000 connections where the machine allows it.
fn raise_file_limit() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = 262_144.max(soft);
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "setpriority has no safe wrapper in the crates used here")]
fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: setpriority takes numbers only; 0 is the calling process.
    let outcome = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    if outcome == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
