//! Actors that send and receive. Each has its port, its readers' names, and its account.

use std::time::Duration;
use tcpmon_tests::traffic::{Between, Method, Reader, ReaderBuilder, Sender, SenderBuilder, Threads};
use tcpmon_tests::truth::{self, State};
use tcpmon_tests::{Delay, Lab, LabOptions, Traffic, device, eventually, many};

use crate::world::{Account, World, one_of};

/// Time limit for one transfer while hogs run on all CPUs and memory is full.
const DEADLINE: Duration = Duration::from_secs(180);

/// Names of processes that the watched daemon must always show (`pin`).
pub const PINNED: [&str; 9] = [
    "soak-steady",
    "soak-transfer",
    "soak-brief",
    "soak-exec",
    "renamed",
    "traffic",
    "soak-lab",
    "soak-loss",
    "soak-fork",
];

/// The accounts, in the order of their ports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Steady,
    Transfer,
    Brief,
    Exec,
    Lab,
    Loss,
    Fork,
    /// Readers with many names. Most of them share the group `other`.
    Names,
}

impl Flow {
    /// Those whose groups are always shown, and so have exact sums of their own.
    pub const EXACT: [Self; 7] =
        [Self::Steady, Self::Transfer, Self::Brief, Self::Exec, Self::Lab, Self::Loss, Self::Fork];

    /// Its port.
    pub fn port(self) -> u16 {
        Account::port(self as usize)
    }

    /// What it sends.
    pub fn account(self, world: &World) -> &Account {
        &world.accounts[self as usize]
    }

    /// The most bytes that it sends on one connection.
    pub fn most_on_a_connection(self) -> u64 {
        match self {
            // Its connections end after the last page.
            Self::Steady => 0,
            Self::Transfer => 90_000_000,
            Self::Brief => 2_000,
            Self::Exec | Self::Fork => 50_000,
            Self::Lab | Self::Loss => 300_000,
            Self::Names => 5_000,
        }
    }

    fn reader(self, lab: &Lab) -> ReaderBuilder {
        let name = match self {
            Self::Steady => "soak-steady",
            Self::Transfer => "soak-transfer",
            Self::Brief => "soak-brief",
            Self::Exec => "soak-exec",
            Self::Lab => "soak-lab",
            Self::Loss => "soak-loss",
            Self::Fork => "soak-fork",
            Self::Names => "soak-name",
        };
        Traffic::reader(lab.receiver()).comm(name).port(self.port())
    }

    /// Sends these bytes on each of the connections, and settles once both ends have counted them.
    fn transfer(self, world: &World, reader: ReaderBuilder, sender: SenderBuilder, connections: u64, bytes: u64) {
        let (account, all) = (self.account(world), connections * bytes);
        account.plan(all);
        let reader = reader.connections(connections).spawn();
        let sender = sender.to(reader.address()).connections(connections).bytes(bytes).spawn();
        let (sent, read) = (sender.wait_for(DEADLINE), reader.wait_for(DEADLINE));
        assert_eq!((sent.bytes, read.bytes), (all, all), "bytes sent and read");
        account.settle(all);
    }
}

fn sender(lab: &Lab) -> SenderBuilder {
    Traffic::sender(lab.sender()).comm("soak-sender")
}

/// Connections that stay open throughout, of a reader that reads at a steady rate.
pub struct Steady {
    pub reader: Reader,
    pub sender: Sender,
}

impl Steady {
    const FLOWS: u64 = 4;
    const MESSAGE: usize = 16_384;
    const CHUNK: usize = 4_096;
    const BYTES_PER_SECOND: u64 = 1_000_000;

    pub fn start(lab: &Lab) -> Self {
        let reader = Flow::Steady.reader(lab).threads(Threads::PerFlow).chunk(Self::CHUNK).connections(Self::FLOWS);
        let reader = reader.spawn();
        let sender = sender(lab).to(reader.address()).flows(Self::FLOWS).message(Self::MESSAGE);
        Self { sender: sender.rate(many(Self::BYTES_PER_SECOND)).spawn(), reader }
    }

    /// Bytes that were certainly read.
    pub fn least(&self) -> u64 {
        self.reader.report().bytes
    }

    /// Bytes that may have been sent: a sender counts a message only after the kernel has taken it.
    pub fn most(&self) -> u64 {
        self.sender.report().bytes + Self::FLOWS * Self::MESSAGE as u64
    }

    /// Bytes that readers may have read and not counted yet.
    pub fn uncounted() -> u64 {
        Self::FLOWS * Self::CHUNK as u64
    }
}

/// Transfers by any kind of reader and sender.
pub fn transfers(world: &World, seed: u64) {
    let lab = Lab::new();
    world.keep_acting(seed, "transfers", Duration::from_millis(500), |dice| {
        let bytes = Flow::Transfer.most_on_a_connection() / 9 / 10_u64.pow(dice.u32(0..=7)) * dice.u64(1..=9);
        let bytes = many(bytes).max(1);
        let connections = if bytes > 1_000_000 { dice.u64(1..=2) } else { dice.u64(1..=12) };
        let (what, threads, method) = one_of(
            dice,
            &[
                ("recv", Threads::Sequential, Method::Recv),
                ("peek", Threads::Sequential, Method::PeekFirst),
                ("splice", Threads::Sequential, Method::Splice),
                ("io_uring", Threads::Sequential, Method::Uring),
                ("thread each", Threads::PerFlow, Method::Recv),
                ("splice, thread each", Threads::PerFlow, Method::Splice),
                ("epoll", Threads::Epoll, Method::Recv),
                ("threads in turn", Threads::Turns(4), Method::Recv),
            ],
        );
        let mut reader = Flow::Transfer.reader(&lab).threads(threads).method(method).chunk(1 << dice.u32(9..=18));
        if bytes <= 100_000 {
            reader =
                reader.between(one_of(dice, &[Between::Nothing, Between::Sleep(500), Between::Spin(200)])).chunk(4_096);
            reader = if dice.bool() { reader.receive_buffer(8_000) } else { reader };
        }
        reader = if dice.u8(..4) == 0 { reader.half_closed() } else { reader };
        let parallel = dice.u64(1..=connections);
        let sender = sender(&lab).parallel(parallel).message(1 << dice.u32(6..=16));
        Flow::Transfer.transfer(world, reader, sender, connections, bytes);
        what
    });
}

/// Thousands of short connections.
pub fn brief(world: &World, seed: u64) {
    let lab = Lab::new();
    lab.allow_many_connections();
    world.keep_acting(seed, "short connections", Duration::from_secs(2), |dice| {
        let reset = dice.bool();
        let sender = sender(&lab).parallel(dice.u64(1..=16));
        let (sender, threads) = if reset {
            (sender.reset(), Threads::Epoll)
        } else {
            (sender, one_of(dice, &[Threads::Epoll, Threads::PerFlow]))
        };
        let (connections, bytes) = (many(dice.u64(500..=3_000)), dice.u64(1..=Flow::Brief.most_on_a_connection()));
        let reader = Flow::Brief.reader(&lab).threads(threads);
        Flow::Brief.transfer(world, reader, sender, connections, bytes);
        if reset { "reset" } else { "closed" }
    });
}

/// Readers that rename themselves, or execute another program with the connection.
pub fn execs(world: &World, seed: u64) {
    const STEP: u64 = 10_000;
    let lab = Lab::new();
    world.keep_acting(seed, "readers", Duration::from_secs(1), |dice| {
        let executes = dice.bool();
        let (account, steps) = (Flow::Exec.account(world), dice.u64(1..Flow::Exec.most_on_a_connection() / STEP));
        let reader = Flow::Exec.reader(&lab).paused().spawn();
        let sender = sender(&lab).paused().to(reader.address()).spawn();
        let mut all = 0;
        for step in 0..=steps {
            account.plan(STEP);
            assert_eq!((sender.send(STEP), reader.read(STEP)), (STEP, STEP), "bytes sent and read");
            all += STEP;
            match (step, executes) {
                (0, true) => reader.exec(),
                (_, false) if step < steps => reader.rename(),
                _ => {}
            }
        }
        sender.finish();
        reader.resume();
        reader.wait_for(DEADLINE);
        account.settle(all);
        if executes { "executed another program" } else { "renamed" }
    });
}

/// Labs, so that namespaces and devices come and go.
pub fn labs(world: &World, seed: u64) {
    world.keep_acting(seed, "namespaces", Duration::from_secs(2), |dice| {
        let delay =
            (dice.u8(..4) == 0).then(|| Delay { one_way: Duration::from_millis(dice.u64(1..=20)), lose_every: 500 });
        let napi = delay.is_none() && dice.bool();
        let lab = Lab::with(LabOptions { napi, delay, ..LabOptions::default() });
        if dice.u8(..8) == 0 {
            device::add_veths(lab.receiver(), "pod", 70);
        }
        let sender = sender(&lab).parallel(2);
        let (connections, bytes) = (dice.u64(1..=8), dice.u64(1..=Flow::Lab.most_on_a_connection()));
        Flow::Lab.transfer(world, Flow::Lab.reader(&lab).threads(Threads::PerFlow), sender, connections, bytes);
        if napi {
            "with NAPI"
        } else if delay.is_some() {
            "with a long path"
        } else {
            "with a wire"
        }
    });
}

/// Readers whose sockets drop some of the segments.
pub fn losses(world: &World, seed: u64) {
    let lab = Lab::new();
    world.keep_acting(seed, "lost segments", Duration::from_secs(1), |dice| {
        let reader = Flow::Loss.reader(&lab).threads(Threads::Epoll).drop_one_in(dice.u32(20..=200));
        let (connections, bytes) = (dice.u64(1..=8), dice.u64(1_000..=Flow::Loss.most_on_a_connection()));
        Flow::Loss.transfer(world, reader, sender(&lab).parallel(4), connections, bytes);
        "dropped by a filter"
    });
}

/// Readers that fork for each connection.
pub fn forks(world: &World, seed: u64) {
    let lab = Lab::new();
    world.keep_acting(seed, "processes", Duration::from_secs(1), |dice| {
        let (account, connections, bytes) =
            (Flow::Fork.account(world), dice.u64(1..=20), dice.u64(1..=Flow::Fork.most_on_a_connection()));
        account.plan(connections * bytes);
        let reader = Flow::Fork.reader(&lab).threads(Threads::Fork).until_exit().spawn();
        let sender = sender(&lab).to(reader.address()).connections(connections).parallel(4).bytes(bytes).spawn();
        assert_eq!(sender.wait_for(DEADLINE).bytes, connections * bytes, "bytes sent");
        // The first process keeps the connections open, so the kernel still shows them.
        eventually(DEADLINE, "every process has read its connection to the end", || {
            let mut sockets = truth::sockets(lab.receiver());
            sockets.retain(|socket| socket.is_connection_to(reader.port()));
            let ended = sockets.iter().filter(|socket| socket.state == State::CloseWait && socket.recv_q == 0).count();
            if ended as u64 == connections { Ok(()) } else { Err(format!("{ended} of {connections}")) }
        });
        reader.exit();
        account.settle(connections * bytes);
        "one for each connection"
    });
}

/// Readers with more names than groups can be shown.
pub fn names(world: &World, seed: u64) {
    let lab = Lab::new();
    world.keep_acting(seed, "names", Duration::from_millis(200), |dice| {
        let reader = Flow::Names.reader(&lab).comm(&format!("n{}", dice.u32(..5_000)));
        Flow::Names.transfer(world, reader, sender(&lab), 1, dice.u64(1..=Flow::Names.most_on_a_connection()));
        "a reader with one of 5,000"
    });
}
