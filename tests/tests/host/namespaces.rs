//! Hosts with many network namespaces: counting starts when tcpmon first sees a namespace, and no namespace is taken
//! for another.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::{ffi::OsStrExt, fs::MetadataExt};
use std::path::PathBuf;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use socket2::SockRef;
use tcpmon_tests::lab::End;
use tcpmon_tests::traffic::Reader;
use tcpmon_tests::{Daemon, Page, Traffic, eventually, fewer, report};
use tempfile::TempDir;

use super::{DEADLINE, IP_EVENTS};

/// A namespace with a process in it, so that tcpmon finds it.
struct Container {
    end: End,
    _process: Reader,
}

impl Container {
    fn new() -> Self {
        Self::of(End::alone())
    }

    fn of(end: End) -> Self {
        let _process = Traffic::reader(&end).paused().spawn();
        Self { end, _process }
    }
}

/// A namespace that is found by its name alone: no process is in it. It is mounted on an empty file, as `ip netns add`
/// does it, but not in the host's folder of names, where it would stay if this process were killed.
struct Named {
    end: End,
    file: PathBuf,
    _folder: TempDir,
}

impl Named {
    fn new(name: &[u8]) -> Self {
        let (end, folder) = (End::alone(), TempDir::new().expect("a folder"));
        let file = folder.path().join(OsStr::from_bytes(name));
        File::create(&file).expect("a name of any bytes but `/`");
        let (none, from) = (None::<&str>, end.path());
        mount(Some(from.as_str()), &file, none, MsFlags::MS_BIND, none).expect("a namespace can be mounted");
        Self { end, file, _folder: folder }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.file, MntFlags::MNT_DETACH) {
            eprintln!("{} cannot be unmounted: {error}", self.file.display());
        }
    }
}

/// Makes a namespace receive this many packets with the congestion mark (CE), which no other traffic on the host has.
fn receive(end: &End, packets: u64) {
    end.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("lo is up");
        SockRef::from(&socket).set_tos_v4(3).expect("a UDP socket may set these bits");
        for _ in 0..packets {
            socket.send_to(b"x", socket.local_addr().expect("it is bound")).expect("lo takes all");
        }
    });
}

fn shown(page: &Page) -> f64 {
    page.value(IP_EVENTS, &[("event", "InCEPkts")]).expect("the kernel counts them")
}

#[track_caller]
fn becomes(daemon: &Daemon, expected: f64) {
    eventually(DEADLINE, &format!("tcpmon shows {expected} packets"), || match shown(&daemon.page()) {
        packets if packets == expected => Ok(()),
        packets => Err(packets.to_string()),
    });
}

#[test]
fn counts_of_namespaces_from_before_tcpmon_make_no_step_and_all_later_counts_are_shown() {
    // More namespaces than one sample has time for.
    let containers: Vec<Container> = (0..fewer(150, 20)).map(|_| Container::new()).collect();
    for container in &containers {
        receive(&container.end, 1000);
    }
    for start in ["the first start", "a restart"] {
        let daemon = Daemon::start(&[]);
        // Each sample covers at least three more namespaces, on an emulated CPU one.
        for page in 0..containers.len() / fewer(3, 1) {
            assert_eq!(shown(&daemon.page()), 0.0, "page {page} after {start}");
        }
        for container in &containers {
            receive(&container.end, 7);
        }
        let old = containers.len() as f64 * 7.0;
        becomes(&daemon, old);
        // A namespace that was created since then and has traffic before tcpmon finds it.
        let end = End::alone();
        receive(&end, 13);
        let _young = Container::of(end);
        becomes(&daemon, old + 13.0);
    }
}

#[test]
fn a_namespace_that_gets_the_number_of_one_that_is_gone_is_another() {
    let number = |end: &End| fs::metadata(end.path()).expect("it is open").ino();
    let daemon = Daemon::start(&[]);
    daemon.page();
    let first = Container::new();
    receive(&first.end, 50);
    becomes(&daemon, 50.0);
    let taken = number(&first.end);
    drop(first);
    // The kernel takes a while to clean up a namespace.
    let again = (0..1000).map(|_| End::alone()).find(|end| number(end) == taken);
    let Some(again) = again else { return report::not_supported("numbers of namespaces are not given out again") };
    // Fewer packets than the first namespace received.
    receive(&again, 20);
    let _again = Container::of(again);
    becomes(&daemon, 70.0);
}

/// The namespace is found only when a process enters it.
#[test]
fn counts_from_before_tcpmon_make_no_step_when_their_namespace_is_found_late() {
    let old = End::alone();
    receive(&old, 1000);
    let daemon = Daemon::start(&[]);
    assert_eq!(shown(&daemon.page()), 0.0);
    let old = Container::of(old);
    // Packets of a second namespace: a page that shows them was made after tcpmon had looked for both namespaces.
    let young = Container::new();
    receive(&young.end, 30);
    becomes(&daemon, 30.0);
    receive(&old.end, 7);
    becomes(&daemon, 37.0);
}

/// The kernel writes some of these characters as octal numbers where it lists what is mounted.
#[test]
fn a_namespace_is_found_by_a_name_of_any_characters() {
    let daemon = Daemon::start(&[]);
    assert_eq!(shown(&daemon.page()), 0.0);
    let (mut named, mut expected) = (Vec::new(), 0);
    for (name, packets) in [
        (&b"plain"[..], 11),
        (b"a blank", 13),
        (b"a\ttab", 17),
        (b"back\\slash", 19),
        (b"back\\040slash", 23),
        (b"a\nline", 29),
        (b"B\xfcro", 31),
    ] {
        let namespace = Named::new(name);
        receive(&namespace.end, packets);
        expected += packets;
        becomes(&daemon, expected as f64);
        named.push(namespace);
    }
    // Each of them is still looked into.
    named.iter().for_each(|namespace| receive(&namespace.end, 1));
    becomes(&daemon, (expected + named.len() as u64) as f64);
}
