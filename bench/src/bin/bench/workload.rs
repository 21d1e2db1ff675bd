//! The fixed-rate workloads of `docs/performance.md`.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tcpmon_tests::lab::End;
use tcpmon_tests::truth::{State, sockets};
use tcpmon_tests::{Lab, LabOptions, eventually};
use tempfile::TempDir;

use crate::child::Child;
use crate::endpoint::Exchanged;
use tcpmon_tests::interrupt;

/// Length of a run.
pub const RUN: Duration = Duration::from_secs(2);

/// Time limit for steps that take milliseconds or [`RUN`].
const DEADLINE: Duration = Duration::from_secs(30);
/// Every port is free, because the network namespaces are the benchmark's own.
const IPERF_PORT: u16 = 5201;
const REDIS_PORT: u16 = 6379;
const NGINX_PORT: u16 = 8080;

/// Arguments of a redis that writes nothing to a disk.
const REDIS: [&str; 6] = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];

/// An nginx with one process that accepts uploads.
const NGINX_CONFIG: &str = "\
daemon off;
master_process off;
pid FOLDER/pid;
events {}
http {
    access_log off;
    client_body_temp_path FOLDER/body;
    server {
        listen 127.0.0.1:PORT;
        keepalive_requests 1000000;
        client_max_body_size 0;
        location / { root FOLDER; dav_methods PUT; }
    }
}
";

/// A kind of traffic at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// 64-byte requests and responses on loopback, 10,000 per second on one connection: ten, one after another, each
    /// millisecond.
    R,
    /// The same with both ends on one CPU.
    RPinned,
    /// The same with a sleep before each request: the CPU idles and handles timers as much as it handles TCP.
    RSingle,
    /// 2,000 connections per second on loopback, each for one request and response of 64 bytes: ten, one after another,
    /// each 5 ms.
    C,
    /// iperf3 on loopback, 8 Gbit/s.
    L,
    /// iperf3 on veth with NAPI, 6 Gbit/s, cubic.
    V,
    /// redis on loopback: 10,000 SET of 64 bytes a second, one after another, ten each millisecond.
    Redis,
    /// redis on loopback: 32,000 SET a second in pipelines of 16, two pipelines each millisecond.
    Redis16,
    /// nginx on loopback: 400 uploads of 256 KiB a second on one connection, into memory.
    Nginx,
}

/// A workload's network, which its runs share.
#[derive(Debug)]
pub struct Wire {
    workload: Workload,
    lab: Lab,
}

/// The side that waits for a client. A trace watches this side.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    /// Its files.
    _folder: Option<TempDir>,
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// CPU time of both ends per second of the workload.
    pub cpu: f64,
    /// Achieved share of the fixed rate; 1 is all of it.
    pub achieved: f64,
    /// Median and 99th percentile of the round trip time in microseconds, where there are round trips.
    pub latency: Option<(f64, f64)>,
}

impl Workload {
    /// The workload's name, as in the document's markers.
    pub fn name(self) -> &'static str {
        match self {
            Self::R => "R",
            Self::RPinned => "R pinned",
            Self::RSingle => "R-single",
            Self::C => "C",
            Self::L => "L",
            Self::V => "V",
            Self::Redis => "redis",
            Self::Redis16 => "redis-16",
            Self::Nginx => "nginx",
        }
    }

    /// Description of the workload.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::R => {
                "64-byte request and response on loopback, one connection, 10,000 a second (ten each millisecond)."
            }
            Self::RPinned => "As R, with both ends on CPU 1.",
            Self::RSingle => "As R, with a sleep before each request.",
            Self::C => {
                "2,000 connections a second on loopback, each for one 64-byte request and response (ten each 5 ms)."
            }
            Self::L => "iperf3 on loopback, 8 Gbit/s.",
            Self::V => "iperf3 on veth (TSO off, GRO on), 6 Gbit/s, cubic.",
            Self::Redis => "redis on loopback, one connection, 10,000 SET of 64 bytes a second (ten each millisecond).",
            Self::Redis16 => {
                "redis on loopback, one connection, 2,000 pipelines of 16 SET a second (two each millisecond)."
            }
            Self::Nginx => "nginx on loopback, one connection, 400 PUT of 256 KiB a second (four each 10 ms).",
        }
    }

    /// Requests (or pipelines of them), connections or bits per second.
    pub fn rate(self) -> f64 {
        match self {
            Self::R | Self::RPinned | Self::RSingle | Self::Redis => 10_000.0,
            Self::C | Self::Redis16 => 2_000.0,
            Self::L => 8e9,
            Self::V => 6e9,
            Self::Nginx => 400.0,
        }
    }

    /// Number of requests after each sleep.
    fn burst(self) -> u64 {
        match self {
            Self::RSingle => 1,
            Self::Redis16 => 2,
            Self::Nginx => 4,
            _ => 10,
        }
    }
}

impl Wire {
    /// A new network, in network namespaces of its own.
    pub fn new(workload: Workload) -> Self {
        Self { workload, lab: Lab::with(LabOptions { napi: true, ..LabOptions::default() }) }
    }

    /// The server's end.
    pub fn end(&self) -> &End {
        self.lab.receiver()
    }

    /// The congestion control that the workload's connections use.
    pub fn congestion(&self) -> String {
        match self.workload {
            Workload::V => "cubic".to_owned(),
            _ => self.end().sysctl("net.ipv4.tcp_congestion_control"),
        }
    }

    /// Starts a server and waits until it listens.
    pub fn server(&self) -> Server {
        let role = match self.workload {
            Workload::R | Workload::RPinned | Workload::RSingle => ("server", vec![self.cpu()]),
            Workload::C => ("acceptor", Vec::new()),
            Workload::L | Workload::V => return self.software(IPERF_PORT, "iperf3", &["--server", "--one-off"], None),
            Workload::Redis | Workload::Redis16 => return self.software(REDIS_PORT, "redis-server", &REDIS, None),
            Workload::Nginx => {
                let folder = tempfile::tempdir_in("/dev/shm").expect("there is a file system in memory");
                let path = folder.path().to_str().expect("names of temporary folders are UTF-8").to_owned();
                let config = NGINX_CONFIG.replace("FOLDER", &path).replace("PORT", &NGINX_PORT.to_string());
                let file = format!("{path}/nginx.conf");
                fs::write(&file, config).expect("there is room in memory");
                return self.software(NGINX_PORT, "nginx", &["-p", &path, "-e", "stderr", "-c", &file], Some(folder));
            }
        };
        let mut child = Child::role(self.end(), role.0, &role.1);
        let port = child.line().parse().expect("the server names its port");
        Server { child, port, _folder: None }
    }

    /// Starts a third-party server.
    fn software(&self, port: u16, program: &str, arguments: &[&str], folder: Option<TempDir>) -> Server {
        let child = Child::spawn(self.end(), program, arguments);
        eventually(DEADLINE, &format!("{program} listens"), || {
            sockets(self.end()).iter().any(|socket| socket.state == State::Listen && socket.local.port() == port)
        });
        Server { child, port, _folder: folder }
    }

    /// Runs a client against the server until both end.
    pub fn run(&self, server: Server, time: Duration) -> Outcome {
        interrupt::check();
        match self.workload {
            Workload::L | Workload::V => self.transfer(server, time),
            _ => self.exchange(server, time),
        }
    }

    fn exchange(&self, server: Server, time: Duration) -> Outcome {
        let pace = [self.workload.rate() as u64, self.workload.burst(), time.as_secs()];
        let numbers = [server.port.into(), server.pid().into()].into_iter().chain(pace);
        let words: Vec<String> = numbers.map(|number| number.to_string()).collect();
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let talk = match self.workload {
            Workload::Redis | Workload::Redis16 | Workload::Nginx => self.workload.name(),
            _ => "echo",
        };
        let role = if self.workload == Workload::C { "connector" } else { "client" };
        if role == "client" {
            arguments.extend([self.cpu(), talk]);
        }
        let mut client = Child::role(self.end(), role, &arguments);
        client.line();
        client.send_line("go");
        let said = client.line();
        client.wait(DEADLINE);
        // Our own servers end with their client.
        if talk == "echo" {
            drop(server.child.wait(DEADLINE))
        } else {
            server.child.end(DEADLINE)
        }
        let result: Exchanged = serde_json::from_str(&said).expect("the client reports in JSON");
        let seconds = result.elapsed_ns as f64 / 1e9;
        Outcome {
            cpu: result.cpu_ns as f64 / 1e9 / seconds,
            achieved: result.requests as f64 / seconds / self.workload.rate(),
            latency: Some((result.p50_ns as f64 / 1e3, result.p99_ns as f64 / 1e3)),
        }
    }

    fn transfer(&self, server: Server, time: Duration) -> Outcome {
        let (from, to) = match self.workload {
            Workload::V => (self.lab.sender(), self.end().v4.to_string()),
            _ => (self.end(), "127.0.0.1".to_owned()),
        };
        let (rate, seconds) = (format!("{}", self.workload.rate()), time.as_secs().to_string());
        let mut arguments = vec!["--client", &to, "--bitrate", &rate, "--time", &seconds, "--json"];
        if self.workload == Workload::V {
            arguments.extend(["--congestion", "cubic"]);
        }
        let client = Child::spawn(from, "iperf3", &arguments).wait(DEADLINE + time);
        let server = server.child.wait(DEADLINE);
        let result: Value = serde_json::from_str(&client.stdout).expect("iperf3 --json writes JSON");
        let received = result["end"]["sum_received"]["bits_per_second"].as_f64().expect("iperf3 sums up what arrived");
        Outcome {
            cpu: (client.cpu + server.cpu).as_secs_f64() / time.as_secs_f64(),
            achieved: received / self.workload.rate(),
            latency: None,
        }
    }

    fn cpu(&self) -> &'static str {
        if self.workload == Workload::RPinned { "1" } else { "any" }
    }
}

impl Server {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// Runs two processes on one CPU that switch all the time and read no socket. Returns how long they ran.
pub fn switch_all_the_time() -> Duration {
    interrupt::check();
    let mut ping = Child::role(&End::host(), "ping", &[&RUN.as_secs().to_string(), "1"]);
    ping.line();
    let start = Instant::now();
    ping.send_line("go");
    ping.line();
    ping.wait(DEADLINE);
    start.elapsed()
}
