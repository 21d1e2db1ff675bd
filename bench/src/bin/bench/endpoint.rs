//! The other processes of a benchmark: this program itself, started again in a role.

use std::error::Error;
use std::io::{self, BufRead, Read, Write, stdin, stdout};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_timerslack;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tcpmon::kernel::floor::Floor;

use crate::child::{cpu_of, read};

/// First argument of a process that is started in a role.
pub const MARKER: &str = "--role";

/// Size of a request and of a response of workload R.
const MESSAGE: usize = 64;
/// Size of a file that a client uploads.
const UPLOAD: usize = 256 << 10;
/// Warm-up before the measurement, as a share of one second's exchanges.
const WARM_UP: f64 = 0.2;

/// The measurements of workload R's client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Exchanged {
    /// CPU time of client and server together.
    pub cpu_ns: u64,
    /// Length of the measurement.
    pub elapsed_ns: u64,
    /// Number of answered requests.
    pub requests: u64,
    /// Median round trip time.
    pub p50_ns: u64,
    /// 99th percentile of the round trip time.
    pub p99_ns: u64,
}

/// When the client of workload R sends requests.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Requests per second.
    rate: f64,
    /// Number of requests after each sleep, sent one after another.
    burst: usize,
}

/// The kernel's counts for one of the floor's programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FloorProgram {
    /// The tracepoint it is attached to.
    pub probe: String,
    /// Number of runs so far.
    pub runs: u64,
    /// Time spent in it so far.
    pub run_ns: u64,
}

/// Runs a role until it ends.
pub fn run(role: &str, arguments: &[String]) -> ExitCode {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match play(role, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench {role}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(role: &str, arguments: &[&str]) -> Played {
    match (role, arguments) {
        ("server", [cpu]) => pin(cpu).and_then(|()| server()),
        ("acceptor", []) => acceptor(),
        ("connector", [port, server, rate, burst, seconds]) => connector(
            port.parse()?,
            server.parse()?,
            Pace { rate: rate.parse()?, burst: burst.parse()? },
            seconds.parse()?,
        ),
        ("client", [port, server, rate, burst, seconds, cpu, talk]) => pin(cpu).and_then(|()| {
            let pace = Pace { rate: rate.parse()?, burst: burst.parse()? };
            client(port.parse()?, server.parse()?, pace, seconds.parse()?, &Talk::named(talk)?)
        }),
        ("floor", []) => floor(),
        ("ping", [seconds, cpu]) => pin(cpu).and_then(|()| ping(seconds.parse()?)),
        ("pong", []) => pong(),
        _ => Err(format!("no role {role} with {arguments:?}").into()),
    }
}

type Played = Result<(), Box<dyn Error>>;

/// Pins this process to one CPU, or to none if `cpu` is `any`.
fn pin(cpu: &str) -> Played {
    if cpu != "any" {
        let mut set = CpuSet::new();
        set.set(cpu.parse()?)?;
        sched_setaffinity(Pid::from_raw(0), &set)?;
    }
    Ok(())
}

fn say(line: &str) -> Played {
    let mut stdout = stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Answers every message on one connection.
fn server() -> Played {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say(&listener.local_addr()?.port().to_string())?;
    let (mut stream, _) = listener.accept()?;
    drop(listener);
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

/// Answers one message on each connection. Ends at the first connection that sends none.
fn acceptor() -> Played {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say(&listener.local_addr()?.port().to_string())?;
    let mut message = [0; MESSAGE];
    loop {
        let (mut stream, _) = listener.accept()?;
        if stream.read_exact(&mut message).is_err() {
            return Ok(());
        }
        stream.write_all(&message)?;
    }
}

/// What a client sends, and where the answer ends.
struct Talk {
    request: Vec<u8>,
    answer: Answer,
}

enum Answer {
    /// After this many bytes.
    Bytes(usize),
    /// After the head of an HTTP response.
    Head,
}

impl Talk {
    /// The talk of a workload, by its name in [`Workload`](crate::workload::Workload).
    fn named(name: &str) -> Result<Self, String> {
        let redis = |commands: usize| {
            let command = format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n${MESSAGE}\r\n{}\r\n", "v".repeat(MESSAGE));
            Self { request: command.repeat(commands).into_bytes(), answer: Answer::Bytes("+OK\r\n".len() * commands) }
        };
        match name {
            "echo" => Ok(Self { request: vec![0; MESSAGE], answer: Answer::Bytes(MESSAGE) }),
            "redis" => Ok(redis(1)),
            "redis-16" => Ok(redis(16)),
            "nginx" => {
                let head = format!("PUT /file HTTP/1.1\r\nHost: nginx\r\nContent-Length: {UPLOAD}\r\n\r\n");
                Ok(Self { request: [head.as_bytes(), &[0; UPLOAD]].concat(), answer: Answer::Head })
            }
            _ => Err(format!("no talk is named {name}")),
        }
    }

    /// One exchange.
    fn exchange_once(&self, stream: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<()> {
        stream.write_all(&self.request)?;
        match self.answer {
            Answer::Bytes(count) => {
                answer.resize(count, 0);
                stream.read_exact(answer)
            }
            Answer::Head => {
                answer.clear();
                while !answer.ends_with(b"\r\n\r\n") {
                    let mut part = [0; 4096];
                    match stream.read(&mut part)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        count => answer.extend(&part[..count]),
                    }
                }
                let success = answer.starts_with(b"HTTP/1.1 20");
                if success { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(answer))) }
            }
        }
    }
}

/// Sends requests at a fixed rate on one connection.
fn client(port: u16, server: u32, pace: Pace, seconds: f64, talk: &Talk) -> Played {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    let mut answer = Vec::new();
    measure(server, pace, seconds, &mut || talk.exchange_once(&mut stream, &mut answer))
}

/// Opens connections at a fixed rate, for one exchange each.
fn connector(port: u16, server: u32, pace: Pace, seconds: f64) -> Played {
    let mut message = [0; MESSAGE];
    measure(server, pace, seconds, &mut || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.write_all(&message)?;
        stream.read_exact(&mut message)
    })?;
    // A connection that sends nothing ends the acceptor.
    drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?);
    Ok(())
}

/// One request with its answer.
type Exchange<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// Makes exchanges at a fixed rate, and reports what they took.
fn measure(server: u32, pace: Pace, seconds: f64, once: Exchange<'_>) -> Played {
    set_timerslack(1)?;
    say("ready")?;
    stdin().lock().read_line(&mut String::new())?;

    let (warm_up, measured) = ((pace.rate * WARM_UP) as usize, (pace.rate * seconds) as usize);
    let mut trips = Vec::with_capacity(warm_up.max(measured));
    exchange(once, pace, warm_up, &mut trips)?;
    trips.clear();
    // The server is blocked in its read now, and will be at the end, too.
    let cpu = || Ok::<_, nix::Error>(read(ClockId::CLOCK_PROCESS_CPUTIME_ID)? + cpu_of(server));
    let (cpu_before, before) = (cpu()?, Instant::now());
    exchange(once, pace, measured, &mut trips)?;
    let (elapsed, cpu_after) = (before.elapsed(), cpu()?);

    trips.sort_unstable();
    let at = |q: f64| trips.get((trips.len() as f64 * q) as usize).copied().unwrap_or(0);
    let exchanged = Exchanged {
        cpu_ns: nanoseconds(cpu_after - cpu_before),
        elapsed_ns: nanoseconds(elapsed),
        requests: trips.len() as u64,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
    };
    say(&serde_json::to_string(&exchanged)?)
}

/// A late burst does not delay the bursts after it.
fn exchange(once: Exchange<'_>, pace: Pace, count: usize, trips: &mut Vec<u64>) -> Played {
    let clock = ClockId::CLOCK_MONOTONIC;
    let start = read(clock)?;
    for number in 0..count {
        if number % pace.burst == 0 {
            let due = start + Duration::from_secs_f64((number + pace.burst) as f64 / pace.rate);
            clock_nanosleep(clock, ClockNanosleepFlags::TIMER_ABSTIME, &due.into())?;
        }
        let sent = Instant::now();
        once()?;
        trips.push(nanoseconds(sent.elapsed()));
    }
    Ok(())
}

/// Keeps the floor attached until stdin closes. Answers each line with the kernel's counts.
fn floor() -> Played {
    let floor = Floor::attach(&[])?;
    say("ready")?;
    for line in stdin().lock().lines() {
        line?;
        let programs = floor.programs().into_iter().map(|(name, stats)| FloorProgram {
            probe: name.strip_prefix("floor_").unwrap_or(&name).to_owned(),
            runs: stats.runs,
            run_ns: stats.run_ns,
        });
        say(&serde_json::to_string(&programs.collect::<Vec<_>>())?)?;
    }
    Ok(())
}

/// Sends a byte back and forth through two pipes: two processes on one CPU that switch at each byte and read no socket.
fn ping(seconds: f64) -> Played {
    say("ready")?;
    stdin().lock().read_line(&mut String::new())?;
    let mut other = Command::new(std::env::current_exe()?)
        .args([MARKER, "pong"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut to = other.stdin.take().ok_or("stdin is piped")?;
    let mut from = other.stdout.take().ok_or("stdout is piped")?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut count = 0u64;
    while Instant::now() < end {
        to.write_all(&[0])?;
        from.read_exact(&mut [0])?;
        count += 1;
    }
    drop(to); // this ends the other process
    other.wait()?;
    say(&count.to_string())
}

fn pong() -> Played {
    let (mut from, mut to) = (stdin().lock(), stdout().lock());
    while from.read_exact(&mut [0]).is_ok() {
        // A single byte never fills a line, so it has to be flushed explicitly.
        to.write_all(&[0])?;
        to.flush()?;
    }
    Ok(())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
