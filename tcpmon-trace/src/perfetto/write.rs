//! Writes a trace as Perfetto's protocol buffers.

use std::{
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io,
    net::SocketAddr,
    num::NonZeroUsize,
};

use lru::LruCache;
use prost::Message as _;

use super::message::{
    Annotated, BOOTTIME, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, EventType, MONOTONIC, PacketList,
    ProcessDescriptor, REALTIME, SEQ_INCREMENTAL_STATE_CLEARED, ThreadDescriptor, TracePacket, TracePacketDefaults,
    TrackDescriptor, TrackEvent, UNIT_SIZE_BYTES,
};
use crate::{
    batch::BatchedOutput,
    fields::{Field, FieldValue, SocketLine, ThreadLine, TimesliceLine},
    header::TraceHeader,
    output::{Output, TraceWriter},
    record::{Comm, Queue, TimesliceRecord},
    total::{SocketTotal, ThreadTotal, Total},
    trailer::{Ending, Trailer},
};

/// Id of the only sequence of packets.
const SEQUENCE: u32 = 1;

/// A track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Track {
    /// The trace as a whole.
    Trace,
    /// A process.
    Process { tgid: u32 },
    /// A thread: its timeslices.
    Thread { tgid: u32, tid: u32 },
    /// A thread's timeslices for one of its sockets.
    ThreadSocket { tid: u32, cookie: u64 },
    /// A socket, above its other tracks.
    Socket { cookie: u64 },
    /// What limited a socket.
    Limit { cookie: u64 },
    /// A number of a socket, over time.
    Counter { cookie: u64, name: &'static str },
}

/// The counters of a socket.
fn counters(queue: &Queue) -> [(&'static str, u32); 4] {
    [
        ("queue", queue.queued_bytes),
        ("receive buffer used", queue.rmem_bytes),
        ("receive buffer limit", queue.rcvbuf_bytes),
        ("window", queue.window_bytes),
    ]
}

/// What a thread's slice shows besides the CPU and why the thread left it.
const OF_THREAD: [Field<TimesliceRecord>; 5] = [
    TimesliceLine::sleep_ns,
    TimesliceLine::wait_ns,
    TimesliceLine::on_cpu_ns,
    TimesliceLine::preempted_by_tid,
    TimesliceLine::preempted_by,
];

/// What a thread's slice of one of its sockets shows.
const OF_SOCKET: [Field<TimesliceRecord>; 9] = [
    TimesliceLine::arrived_off_cpu_bytes,
    TimesliceLine::arrived_on_cpu_bytes,
    TimesliceLine::read_bytes,
    TimesliceLine::waited_application_byte_us,
    TimesliceLine::waited_scheduler_byte_us,
    TimesliceLine::rcv_rtt_us,
    TimesliceLine::partial,
    TimesliceLine::handed_over,
    TimesliceLine::closed,
];

/// What the totals of a socket show besides its causes.
const SOCKET_TOTALS: [Field<SocketTotal>; 4] =
    [SocketLine::received_bytes, SocketLine::read_bytes, SocketLine::timeslices_read_bytes, SocketLine::zero_window_ns];

/// What the totals of a thread show.
const THREAD_TOTALS: [Field<ThreadTotal>; 5] =
    [ThreadLine::on_cpu_ns, ThreadLine::wait_ns, ThreadLine::preempted, ThreadLine::blocked, ThreadLine::read_bytes];

/// Writes a trace for Perfetto: slices for timeslices and for what limited each socket, and counters.
pub struct PerfettoWriter<O: Output> {
    output: BatchedOutput<O>,
    header: TraceHeader,
    tracks: Tracks,
}

/// Maximum number of tracks that are remembered, 100 bytes each: those that were used last. A forgotten track is
/// described again, with the same id.
const KNOWN: NonZeroUsize = NonZeroUsize::new(if cfg!(test) { 64 } else { 200_000 }).expect("not 0");

/// What is known of a track.
#[derive(Clone, Copy, Debug)]
struct KnownTrack {
    id: u64,
    /// When its last slice ended, ns.
    end_ns: u64,
    /// Name of a process or a thread.
    comm: Option<Comm>,
}

/// The tracks, and the packets that are to be written.
#[derive(Debug)]
struct Tracks {
    known: LruCache<Track, KnownTrack>,
    packets: Vec<TracePacket>,
}

impl<O: Output> PerfettoWriter<O> {
    /// Starts a trace: writes its header to the output at once.
    pub fn new(output: O, header: &TraceHeader) -> io::Result<Self> {
        let mut tracks = Tracks::new();
        let clock = |clock_id, timestamp| Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
        let start = header.start;
        tracks.packets.push(TracePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![
                    clock(REALTIME, start.realtime_ns),
                    clock(MONOTONIC, start.monotonic_ns),
                    // The trace does not have this clock, which Perfetto shows; suspended time is not of interest here.
                    clock(BOOTTIME, start.monotonic_ns),
                ],
            }),
            trusted_packet_sequence_id: Some(SEQUENCE),
            trace_packet_defaults: Some(TracePacketDefaults { timestamp_clock_id: Some(MONOTONIC) }),
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            ..TracePacket::default()
        });
        let track = tracks.id(Track::Trace, || descriptor(format!("tcpmon trace of {}", header.hostname), None));
        let mut about = vec![
            text("hostname", &header.hostname),
            text("kernel_release", &header.kernel_release),
            text("tcpmon_version", &header.tcpmon_version),
        ];
        if !header.trigger.is_empty() {
            about.push(text("trigger", &header.trigger));
        }
        tracks.instant(track, start.monotonic_ns, "start of the trace", about);
        Ok(Self { output: BatchedOutput::new(output, &tracks.take())?, header: header.clone(), tracks })
    }
}

impl Tracks {
    fn new() -> Self {
        Self { known: LruCache::new(KNOWN), packets: Vec::new() }
    }

    /// A track, which is described first if it is not known. Its parent must be known.
    fn get(&mut self, track: Track, describe: impl FnOnce() -> TrackDescriptor) -> &mut KnownTrack {
        let packets = &mut self.packets;
        self.known.get_or_insert_mut(track, || {
            let id = BuildHasherDefault::<DefaultHasher>::default().hash_one(track);
            packets.push(description(id, describe()));
            KnownTrack { id, end_ns: 0, comm: None }
        })
    }

    fn id(&mut self, track: Track, describe: impl FnOnce() -> TrackDescriptor) -> u64 {
        self.get(track, describe).id
    }

    /// The id of the track of a process or a thread, and its former name if it has a new one: the track is then
    /// described again.
    fn named(&mut self, track: Track, comm: &Comm, describe: impl Fn() -> TrackDescriptor) -> (u64, Option<Comm>) {
        let known = self.get(track, &describe);
        let (id, before) = (known.id, known.comm.replace(*comm).filter(|before| before != comm));
        if before.is_some() {
            self.packets.push(description(id, describe()));
        }
        (id, before)
    }

    fn thread(&mut self, tgid: u32, tid: u32, comm: &Comm, at_ns: u64) -> u64 {
        let process = Track::Process { tgid };
        let describe = || TrackDescriptor {
            process: Some(ProcessDescriptor { pid: Some(tgid as i32), process_name: Some(comm.as_str().into()) }),
            ..TrackDescriptor::default()
        };
        // A process has the name of its first thread.
        let process = if tid == tgid { self.named(process, comm, describe).0 } else { self.id(process, describe) };
        let (thread, before) = self.named(Track::Thread { tgid, tid }, comm, || TrackDescriptor {
            thread: Some(ThreadDescriptor {
                pid: Some(tgid as i32),
                tid: Some(tid as i32),
                thread_name: Some(comm.as_str().into()),
            }),
            parent_uuid: Some(process),
            ..TrackDescriptor::default()
        });
        if let Some(before) = before {
            self.instant(thread, at_ns, "renamed", vec![text("from", before.as_str()), text("to", comm.as_str())]);
        }
        thread
    }

    fn socket(&mut self, cookie: u64, local: SocketAddr, remote: SocketAddr) -> u64 {
        self.id(Track::Socket { cookie }, || descriptor(name_of(cookie, local, remote), None))
    }

    fn event(&mut self, at_ns: u64, kind: EventType, event: TrackEvent) {
        self.packets.push(TracePacket {
            timestamp: Some(at_ns),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(TrackEvent { r#type: Some(kind as i32), ..event }),
            ..TracePacket::default()
        });
    }

    /// Slices of a track must not overlap, so this one starts at the earliest when the last one has ended. If it ended
    /// before that (records of two CPUs come in any order), it becomes an event without a duration.
    fn slice(&mut self, track: Track, (begin, end): (u64, u64), name: &str, about: Vec<DebugAnnotation>) {
        let Some(known) = self.known.get_mut(&track) else {
            return;
        };
        let id = known.id;
        let begin = begin.max(known.end_ns);
        if begin > end {
            return self.instant(id, end, name, about);
        }
        known.end_ns = end;
        let track_uuid = Some(id);
        let begun =
            TrackEvent { track_uuid, name: Some(name.into()), debug_annotations: about, ..TrackEvent::default() };
        self.event(begin, EventType::SliceBegin, begun);
        self.event(end, EventType::SliceEnd, TrackEvent { track_uuid, ..TrackEvent::default() });
    }

    fn instant(&mut self, track: u64, at_ns: u64, name: &str, annotations: Vec<DebugAnnotation>) {
        let event = TrackEvent {
            track_uuid: Some(track),
            name: Some(name.into()),
            debug_annotations: annotations,
            ..TrackEvent::default()
        };
        self.event(at_ns, EventType::Instant, event);
    }

    fn counters(&mut self, socket: u64, cookie: u64, at_ns: u64, queue: &Queue) {
        for (name, value) in counters(queue) {
            let track = self.id(Track::Counter { cookie, name }, || TrackDescriptor {
                counter: Some(CounterDescriptor { unit: Some(UNIT_SIZE_BYTES) }),
                ..descriptor(name.into(), Some(socket))
            });
            let counter_value = Some(value.into());
            let event = TrackEvent { track_uuid: Some(track), counter_value, ..TrackEvent::default() };
            self.event(at_ns, EventType::Counter, event);
        }
    }

    fn record(&mut self, header: &TraceHeader, record: &TimesliceRecord) {
        let TimesliceRecord { tgid, tid, cookie, activated_ns, deactivated_ns, .. } = *record;
        let thread = self.thread(tgid, tid, &record.comm, activated_ns);
        // All records of a timeslice have the same end.
        let track = Track::Thread { tgid, tid };
        if self.known.peek(&track).is_some_and(|known| known.end_ns != deactivated_ns) {
            let mut about = [TimesliceLine::end, TimesliceLine::cpu]
                .map(|key| annotation(&key, (key.get)(header, record)))
                .to_vec();
            about.extend(annotations(&OF_THREAD, header, record));
            self.slice(track, (activated_ns, deactivated_ns), "on the CPU", about);
        }

        let name = if record.read_bytes > 0 { "reads" } else { "does not read" };
        let own = Track::ThreadSocket { tid, cookie };
        self.id(own, || descriptor(name_of(cookie, record.local, record.remote), Some(thread)));
        let about = annotations(&OF_SOCKET, header, record).collect();
        self.slice(own, (activated_ns, deactivated_ns), name, about);

        let socket = self.socket(cookie, record.local, record.remote);
        self.counters(socket, cookie, activated_ns, &record.activation);
        self.counters(socket, cookie, deactivated_ns, &record.deactivation);
        let causes = record.limited.causes();
        if let Some((cause, 1..)) = causes.iter().max_by_key(|(_, ns)| *ns) {
            let limit = Track::Limit { cookie };
            self.id(limit, || descriptor("limited by".into(), Some(socket)));
            let begin = deactivated_ns.saturating_sub(record.limited.decided_ns());
            self.slice(limit, (begin, deactivated_ns), cause, numbers(causes).collect());
        }
    }

    fn total(&mut self, header: &TraceHeader, total: &Total) {
        match total {
            Total::Socket(total) => {
                let socket = self.socket(total.cookie, total.local, total.remote);
                let about = annotations(&SOCKET_TOTALS, header, total).chain(numbers(total.limited.causes()));
                self.instant(socket, total.at_ns, "totals", about.collect());
            }
            Total::Thread(total) => {
                let thread = self.thread(total.tgid, total.tid, &total.comm, total.at_ns);
                let about = annotations(&THREAD_TOTALS, header, total).collect();
                self.instant(thread, total.at_ns, "totals", about);
            }
        }
    }

    /// The packets that have been collected, as bytes.
    fn take(&mut self) -> Vec<u8> {
        PacketList { packet: std::mem::take(&mut self.packets) }.encode_to_vec()
    }
}

/// Appends packets, unless earlier ones were refused: others may refer to tracks that those describe.
fn append(refused: bool, packets: Vec<u8>) -> impl FnOnce(&mut Vec<u8>) -> io::Result<()> {
    move |buffer| {
        if refused {
            return Err(io::ErrorKind::StorageFull.into());
        }
        buffer.extend(packets);
        Ok(())
    }
}

impl<O: Output> TraceWriter for PerfettoWriter<O> {
    fn record(&mut self, record: &TimesliceRecord) -> io::Result<()> {
        self.tracks.record(&self.header, record);
        self.output.record(append(self.output.has_refused(), self.tracks.take()))
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        self.tracks.total(&self.header, total);
        self.output.total(append(self.output.has_refused(), self.tracks.take()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn finish(&mut self, ending: &Ending) -> io::Result<Trailer> {
        let (tracks, hostname) = (&mut self.tracks, &self.header.hostname);
        let track = tracks.id(Track::Trace, || descriptor(format!("tcpmon trace of {hostname}"), None));
        let description = tracks.take();
        self.output.finish(ending, |trailer| {
            let mut about = vec![
                text("reason", trailer.reason.name()),
                integer("records", trailer.records),
                DebugAnnotation { name: Some("complete".into()), value: Some(Annotated::Flag(trailer.complete)) },
            ];
            let lost = trailer.lost.iter().filter(|(_, count)| **count > 0);
            about.extend(lost.map(|(cause, count)| integer(&format!("lost.{cause}"), *count)));
            tracks.instant(track, trailer.end.monotonic_ns, "end of the trace", about);
            Ok([description.clone(), tracks.take()].concat())
        })
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.output.failure()
    }

    fn finish_cut(&mut self) -> io::Result<()> {
        self.output.finish_cut()
    }
}

/// The packet that describes the track with this id.
fn description(id: u64, descriptor: TrackDescriptor) -> TracePacket {
    TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        track_descriptor: Some(TrackDescriptor { uuid: Some(id), ..descriptor }),
        ..TracePacket::default()
    }
}

fn descriptor(name: String, parent_uuid: Option<u64>) -> TrackDescriptor {
    TrackDescriptor { name: Some(name), parent_uuid, ..TrackDescriptor::default() }
}

fn name_of(cookie: u64, local: SocketAddr, remote: SocketAddr) -> String {
    format!("socket {cookie:x}: {local} from {remote}")
}

fn text(name: &str, value: &str) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), value: Some(Annotated::Text(value.into())) }
}

fn integer(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.into()), value: Some(Annotated::Integer(value)) }
}

/// A key with this value.
fn annotation<R>(key: &Field<R>, value: FieldValue<'_>) -> DebugAnnotation {
    let value = match value {
        FieldValue::Small(number) => Annotated::Integer(number.into()),
        FieldValue::Integer(number) | FieldValue::Time(number) => Annotated::Integer(number),
        FieldValue::Flag(flag) => Annotated::Flag(flag),
        text => Annotated::Text(text.to_string()),
    };
    DebugAnnotation { name: Some(key.key.into()), value: Some(value) }
}

/// The values of these keys, those left out that are zero, false or empty.
fn annotations<R>(keys: &[Field<R>], header: &TraceHeader, record: &R) -> impl Iterator<Item = DebugAnnotation> {
    let is_empty = |value: FieldValue<'_>| match value {
        FieldValue::Small(0) | FieldValue::Integer(0) | FieldValue::Time(0) | FieldValue::Flag(false) => true,
        FieldValue::Text(text) => text.is_empty(),
        FieldValue::Comm(comm) => comm.as_str().is_empty(),
        _ => false,
    };
    keys.iter().filter_map(move |key| {
        let value = (key.get)(header, record);
        (!is_empty(value)).then(|| annotation(key, value))
    })
}

/// Annotations for the numbers that are not zero.
fn numbers<const N: usize>(numbers: [(&str, u64); N]) -> impl Iterator<Item = DebugAnnotation> {
    numbers.into_iter().filter(|(_, value)| *value > 0).map(|(name, value)| integer(name, value))
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io::Write, rc::Rc};

    use super::*;
    use crate::sample::{self, Disk};

    /// A disk whose room can change while it is written to.
    #[derive(Clone)]
    struct SharedDisk(Rc<RefCell<Disk>>);

    impl Write for SharedDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Output for SharedDisk {
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.0.borrow_mut().cut(length)
        }
    }

    #[test]
    fn after_a_refusal_no_record_can_refer_to_a_track_that_is_not_described() {
        let disk = SharedDisk(Rc::new(RefCell::new(Disk { bytes: Vec::new(), room: 1000 })));
        let mut writer = PerfettoWriter::new(disk.clone(), &sample::header()).expect("there is room");
        let mut record = |cookie| writer.record(&TimesliceRecord { cookie, ..sample::record() });
        let mut cookies = 1..;
        let refused = cookies.find(|cookie| record(*cookie).is_err()).expect("the disk is full");
        disk.0.borrow_mut().room = usize::MAX;
        record(refused).expect_err("its track was described to a full disk");
        let trailer = writer.finish(&sample::ending()).expect("there is room");
        assert_eq!((trailer.records, trailer.lost[crate::LOST_WRITE], trailer.complete), (refused - 1, 2, false));
    }

    #[test]
    fn memory_is_bounded_and_a_track_that_comes_back_has_its_id() {
        let mut tracks = Tracks::new();
        let record = |cookie| TimesliceRecord { cookie, ..sample::record() };
        let mut described = Vec::new();
        for cookie in [1].into_iter().chain(2..1000).chain([1]) {
            tracks.record(&sample::header(), &record(cookie));
            let ids = tracks.packets.drain(..).filter_map(|packet| packet.track_descriptor?.uuid);
            described.push(ids.collect::<Vec<_>>());
            assert!(tracks.known.len() <= KNOWN.get());
        }
        let [first, .., last] = described.as_slice() else { panic!("two at least") };
        // The process and the thread are known; everything about the socket is described again.
        assert_eq!(first[2..], *last);
    }
}
