//! Stress: passes are made while events come as fast as possible, and no counter decreases, disappears, or increases by
//! more than is physically possible. The daemon makes at most four passes per second, so this test drives its collector
//! directly.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{DEADLINE, group, sender};
use tcpmon::commands::collector::Collector;
use tcpmon::config::Config;
use tcpmon::kernel::{Kernel, Options};
use tcpmon::metrics::{self, Format, Identity};
use tcpmon::model::snapshot::Observed;
use tcpmon::model::table::TableLimits;
use tcpmon_tests::physics::{Limits, Start};
use tcpmon_tests::traffic::{Reader, Sender, Threads};
use tcpmon_tests::{Lab, Page, Physics, Traffic, eventually, truth};

/// Time during which passes are made, one after the other.
const TIME: Duration = Duration::from_secs(40);
/// Number of pages between two queries of the sender's own count, because the sender needs a CPU to answer. A counter
/// that has jumped stays too high, so a later check still sees it.
const ASK_EVERY: u64 = 50;
/// The reader's name.
const COMM: &str = "stress";
/// Bytes in one write, each of which is sent as one segment, and the maximum number of bytes in one read.
const MESSAGE: usize = 300;
const CHUNK: usize = 3_000;
/// Number of connections, each with a thread that sends and a thread that reads. With two, queues are empty too often:
/// a read of a socket during which an event happened was seen once in 1,400 pages (6.18, 2 CPUs), with four once in
/// 300.
const FLOWS: u64 = 4;
/// The most by which one segment can overdraw a receive buffer: 64 KiB, in twice as much memory.
const OVERDRAFT: f64 = 131_072.0;

#[test]
fn no_counter_falls_vanishes_or_leaps_while_small_messages_come_as_fast_as_they_go() {
    let (lab, begun, start) = (Lab::new(), Instant::now(), Start::now());
    let mut watch = Watch::start();
    let stream = Stream::start(&lab);
    let most = lab.receiver().sysctl("net.ipv4.tcp_rmem");
    let most: f64 = most.split_ascii_whitespace().last().and_then(|most| most.parse().ok()).expect("three numbers");
    let mut physics = Physics::new(Limits::of_host(most + OVERDRAFT), start);
    for number in 0_u64.. {
        if begun.elapsed() > TIME {
            eprintln!("{number} passes");
            break;
        }
        let mut looked = physics.page(&watch.page());
        if number.is_multiple_of(ASK_EVERY) {
            looked = looked.and_then(|()| stream.counts_no_more(&physics));
        }
        looked.unwrap_or_else(|error| panic!("pass {number}: {error}"));
    }
    stream.end(&lab, &mut watch, begun);
}

/// The daemon's collector, read as metrics pages without the host's families.
struct Watch {
    collector: Collector,
    identity: Arc<Identity>,
}

impl Watch {
    fn start() -> Self {
        let options = Options::from(&Config::default().validate().expect("the defaults are valid"));
        let limits =
            TableLimits { max_groups: 200, group_ttl: Duration::from_secs(600), pin: Vec::new(), cgroup_of: None };
        let collector = Collector::new(Kernel::load(options).expect("tcpmon runs here"), limits);
        Self { collector, identity: Arc::new(Identity::read()) }
    }

    fn page(&mut self) -> String {
        let snapshot = Arc::new(self.collector.pass().expect("the kernel can be read"));
        let (seen, mut page) = (Observed { snapshot, ..Observed::default() }, Vec::new());
        metrics::encode(&self.identity, seen, Format::Text, &mut page).expect("a page");
        String::from_utf8(page).expect("a page is text")
    }
}

/// Small messages, as many as the CPUs can handle.
struct Stream {
    reader: Reader,
    sender: Sender,
}

impl Stream {
    fn start(lab: &Lab) -> Self {
        let reader = Traffic::reader(lab.receiver()).comm(COMM).threads(Threads::PerFlow).chunk(CHUNK);
        let reader = reader.connections(FLOWS).spawn();
        let sender = sender(lab, &reader).comm("stress-sender").message(MESSAGE).flows(FLOWS).spawn();
        Self { reader, sender }
    }

    /// Checks that no byte is counted that has not been sent.
    fn counts_no_more(&self, physics: &Physics) -> Result<(), String> {
        // A sender counts a message only after the kernel has taken it.
        let most = self.sender.report().bytes + FLOWS * MESSAGE as u64;
        let labels = format!("process=\"{COMM}\",service=\"local:{}\"", self.reader.port());
        for counter in ["receive", "receive_read", "timeslice_read"] {
            let counter = format!("tcpmon_{counter}_bytes_total{{{labels}}}");
            let counted = physics.value(&counter).unwrap_or_default();
            if counted > most as f64 {
                return Err(physics.report(&format!("{counter} is {counted}, and {most} bytes were sent")));
            }
        }
        Ok(())
    }

    /// Waits until everything is sent and read, and compares tcpmon's numbers with those of sender, reader and
    /// inet_diag.
    fn end(self, lab: &Lab, watch: &mut Watch, begun: Instant) {
        let Self { reader, sender } = self;
        // Receive buffers grow, but do not shrink.
        let mut sockets = truth::sockets(lab.receiver());
        sockets.retain(|socket| socket.is_connection_to(reader.port()));
        let room: f64 = sockets.iter().map(|socket| f64::from(socket.rcvbuf) + OVERDRAFT).sum();
        let (sent, read) = (sender.finish().bytes, reader.wait().bytes);
        assert_eq!(sent, read);
        let labels = group(COMM, reader.port());
        let mut value = |name: &str| {
            let page = Page::parse(&watch.page()).expect("a page of metrics");
            page.value(name, &labels).unwrap_or_default()
        };
        eventually(DEADLINE, "every byte is counted once", || {
            let seen = (value("tcpmon_receive_bytes_total"), value("tcpmon_receive_read_bytes_total"));
            if seen == (read as f64, read as f64) { Ok(()) } else { Err(format!("{seen:?} of {read}")) }
        });
        let (waited, most) = (value("tcpmon_receive_queue_byte_seconds_total"), room * begun.elapsed().as_secs_f64());
        assert!(waited <= most, "the bytes waited for {waited} byte-seconds, and there was room for {most}");
    }
}
