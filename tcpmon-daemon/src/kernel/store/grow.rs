//! Adds arrays of states. Creating one requires CAP_BPF, which tcpmon gives up, except for two threads that keep just
//! that.
#![expect(unsafe_code, reason = "bpf(2) calls that no crate wraps")]

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use aya::maps::MapData;
use rustix::event::{EventfdFlags, epoll, eventfd};
use tcpmon_common::{socket::SocketState, store::BLOCK};

use super::{FreeStates, SPARE, WAKE_AT, free_state};
use crate::kernel::{
    bpf::{
        BPF_BTF_LOAD, BPF_MAP_CREATE, BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_BATCH, BPF_MAP_UPDATE_ELEM, MapElement, bpf,
    },
    mapped::Mapped,
};

/// Maximum number of arrays that are added at once, so that the first of many are there soon.
const MOST_AT_ONCE: u32 = 16;

/// From `enum bpf_map_type`.
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Number of arrays that are added when the programs report that few states are left, but at most as many as already
/// exist: this is the beginning of a burst.
const WHEN_FEW: u32 = 8;

/// How long it usually takes until arrays are in their places.
const PLACING_TIME: Duration = Duration::from_micros(50);

/// The part of `union bpf_attr` that `BPF_MAP_CREATE` reads.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
}

/// The part of `union bpf_attr` that `BPF_BTF_LOAD` reads.
#[repr(C)]
struct BtfLoad {
    btf: u64,
    btf_log_buf: u64,
    btf_size: u32,
    btf_log_size: u32,
    btf_log_level: u32,
    padding: u32,
}

/// The part of `union bpf_attr` that commands for many elements of a map read.
#[repr(C)]
struct MapBatch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Ids of the types of keys and values in [`load_types`].
const KEY: u32 = 1;
const VALUE: u32 = 2;

/// What the store asks the grower for: a number of arrays, or to end.
pub(super) struct Ask {
    arrays: AtomicU32,
    event: OwnedFd,
}

/// Takes the place of a number of arrays: the store is gone.
const END: u32 = u32::MAX;

impl Ask {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { arrays: AtomicU32::new(0), event })
    }

    /// Asks for at least this many arrays in total.
    pub(super) fn for_arrays(&self, count: u32) {
        self.arrays.store(count, Ordering::Release);
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn to_end(&self) {
        self.for_arrays(END);
    }
}

/// Creates arrays of states: as many as the store asks for, and more when few states are left. It ends with the store.
pub struct Grower {
    /// The array of arrays.
    states: Arc<MapData>,
    free: FreeStates,
    types: OwnedFd,
    /// Number of existing arrays, and the maximum.
    blocks: u32,
    max_blocks: u32,
    /// Whether one call can place many arrays.
    at_once: bool,
    asked: Arc<Ask>,
    made: Sender<io::Result<Mapped<SocketState>>>,
    threads: Option<Threads>,
}

/// What a grower on a thread of its own has: what wakes it, and its channels to and from the placer.
struct Threads {
    events: OwnedFd,
    _ring: OwnedFd,
    blocks: Sender<(u32, Vec<OwnedFd>)>,
    done: Receiver<io::Result<bool>>,
}

/// Puts arrays into the array of arrays for the grower. Programs find them at once, but the kernel makes this thread
/// wait after that until no program sees the former content of their places, 4 to 20 ms on a busy host. It ends with
/// the grower.
pub struct Placer {
    states: Arc<MapData>,
    blocks: Receiver<(u32, Vec<OwnedFd>)>,
    done: Sender<io::Result<bool>>,
}

impl Placer {
    /// Works until the grower is gone.
    pub fn run(self) {
        while let Ok((first, blocks)) = self.blocks.recv() {
            if self.done.send(set_blocks(self.states.fd().as_fd(), first, &blocks)).is_err() {
                return;
            }
        }
    }
}

impl Grower {
    pub(super) fn new(
        states: MapData,
        free: FreeStates,
        max_blocks: u32,
        asked: Arc<Ask>,
        made: Sender<io::Result<Mapped<SocketState>>>,
    ) -> io::Result<Self> {
        let (states, types) = (Arc::new(states), load_types()?);
        Ok(Self { states, free, types, blocks: 0, max_blocks, at_once: true, asked, made, threads: None })
    }

    /// Prepares the grower, and the placer of its arrays, to run on threads of their own. The programs wake the grower
    /// through the `ring`.
    ///
    /// # Errors
    /// If no file descriptors are left.
    pub(in crate::kernel) fn prepare(mut self, ring: OwnedFd) -> io::Result<(Self, Placer)> {
        // Edge-triggered: the collector takes what is in the ring, so only new data may wake this thread.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&events, &ring, epoll::EventData::new_u64(0), flags)?;
        epoll::add(&events, &self.asked.event, epoll::EventData::new_u64(1), flags)?;
        let ((blocks, to_place), (done, placed)) = (channel(), channel());
        self.threads = Some(Threads { events, _ring: ring, blocks, done: placed });
        let placer = Placer { states: Arc::clone(&self.states), blocks: to_place, done };
        Ok((self, placer))
    }

    /// Works until the store is gone.
    pub fn run(mut self) {
        while let Some(threads) = &self.threads {
            // The only error is an interruption by a signal.
            let _ = epoll::wait(&threads.events, &mut [MaybeUninit::<epoll::Event>::uninit(); 2], None);
            let wanted = self.asked.arrays.load(Ordering::Acquire);
            if wanted == END {
                return;
            }
            loop {
                let free = self.free.free();
                let burst = if free <= WAKE_AT { self.blocks.min(WHEN_FEW) } else { 0 };
                let count =
                    SPARE.saturating_sub(free).div_ceil(BLOCK).max(burst).max(wanted.saturating_sub(self.blocks));
                let count = count.min(self.max_blocks.saturating_sub(self.blocks));
                if count == 0 {
                    break;
                }
                let added = self.add(count.min(if self.at_once { MOST_AT_ONCE } else { 1 }));
                self.free.set_wake();
                if let Err(error) = added {
                    // If the store is gone, there is nobody to tell.
                    let _ = self.made.send(Err(error));
                    break;
                }
            }
        }
    }

    /// Adds this many arrays of states, all of them free, or as many as the kernel grants.
    pub(super) fn add(&mut self, count: u32) -> io::Result<()> {
        let mut blocks = Vec::new();
        let refused = (0..count).try_for_each(|_| create_block(&self.types).map(|block| blocks.push(block)));
        if let Some(last) = blocks.last() {
            let first = self.blocks * BLOCK;
            let mapped: Vec<Mapped<SocketState>> =
                blocks.iter().map(|block| Mapped::map(block.as_fd(), BLOCK as usize)).collect::<Result<_, _>>()?;
            for (block, first) in mapped.iter().zip((first..).step_by(BLOCK as usize)) {
                for place in 0..BLOCK {
                    // The lowest index is taken first, so that passes stay short.
                    block.set(place as usize, free_state(0, first + place, first + place + 1));
                }
            }
            let last = Mapped::map(last.as_fd(), BLOCK as usize)?;
            let count = blocks.len() as u32;
            self.place_blocks(blocks)?;
            self.blocks += count;
            // The store gets them before any of their states can be taken, so that it finds each state that has ended.
            for block in mapped {
                let _ = self.made.send(Ok(block));
            }
            self.free.give(first, &last, BLOCK as usize - 1, count * BLOCK);
        }
        refused
    }

    /// Lets programs find these arrays.
    fn place_blocks(&mut self, blocks: Vec<OwnedFd>) -> io::Result<()> {
        let states = self.states.fd().as_fd();
        let Some(threads) = &self.threads else {
            self.at_once = set_blocks(states, self.blocks, &blocks)?;
            return Ok(());
        };
        let last = self.blocks + blocks.len() as u32 - 1;
        let ended = || io::Error::other("the thread that puts them into their places has ended");
        threads.blocks.send((self.blocks, blocks)).map_err(|_| ended())?;
        // They are placed in order, so if the last one is there, all are.
        while !is_set(states, last)? {
            match threads.done.recv_timeout(PLACING_TIME) {
                Ok(Err(error)) => return Err(error),
                // Often the answer for earlier arrays.
                Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            }
        }
        Ok(())
    }
}

/// Loads the types for arrays of states: an integer as the key, and a structure without members as the value. Before
/// Linux 6.2, the array of arrays accepts no array whose values have no structure, because it was created with one.
fn load_types() -> io::Result<OwnedFd> {
    const NAMES: &[u8] = b"\0u32\0state\0";
    const INT: u32 = 1 << 24;
    const STRUCT: u32 = 4 << 24;
    let types = [1, INT, 4, u32::BITS, 5, STRUCT, size_of::<SocketState>() as u32];
    let types_size = size_of_val(&types) as u32;
    // Magic number and version; then sizes and places of header, types and names.
    let header = [0x1_eb9f, 24, 0, types_size, types_size, NAMES.len() as u32];
    let words = header.into_iter().chain(types).flat_map(u32::to_ne_bytes);
    let bytes: Vec<u8> = words.chain(NAMES.iter().copied()).collect();
    let mut attributes = BtfLoad {
        btf: bytes.as_ptr() as u64,
        btf_log_buf: 0,
        btf_size: bytes.len() as u32,
        btf_log_size: 0,
        btf_log_level: 0,
        padding: 0,
    };
    // SAFETY: these are the attributes of the command, and the bytes live during the call.
    let fd = unsafe { bpf(BPF_BTF_LOAD, &mut attributes)? };
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates an array of states, whose values are of `types` (see [`load_types`]).
fn create_block(types: &OwnedFd) -> io::Result<OwnedFd> {
    let mut map_name = [0; 16];
    map_name[..6].copy_from_slice(b"STATES");
    let mut attributes = MapCreate {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<SocketState>() as u32,
        max_entries: BLOCK,
        map_flags: BPF_F_MMAPABLE,
        inner_map_fd: 0,
        numa_node: 0,
        map_name,
        map_ifindex: 0,
        btf_fd: types.as_raw_fd() as u32,
        btf_key_type_id: KEY,
        btf_value_type_id: VALUE,
    };
    // SAFETY: these are the attributes of the command.
    let fd = unsafe { bpf(BPF_MAP_CREATE, &mut attributes)? };
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the array of arrays has an array of states at this place.
fn is_set(states: BorrowedFd<'_>, number: u32) -> io::Result<bool> {
    let mut id = 0_u32;
    let mut element = MapElement::new(states, &raw const number, &raw mut id);
    // SAFETY: the key and the value live during the call.
    match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut element) } {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts arrays of states into the array of arrays, which then keeps them; the first one goes to place `first`. Returns
/// whether one call was enough (Linux 5.19).
fn set_blocks(states: BorrowedFd<'_>, first: u32, blocks: &[OwnedFd]) -> io::Result<bool> {
    let keys: Vec<u32> = (first..).take(blocks.len()).collect();
    let values: Vec<u32> = blocks.iter().map(|block| block.as_raw_fd() as u32).collect();
    let mut batch = MapBatch {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count: keys.len() as u32,
        map_fd: states.as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: there are `count` keys and values, which live during the call.
    if unsafe { bpf(BPF_MAP_UPDATE_BATCH, &mut batch) }.is_ok() {
        return Ok(true);
    }
    keys.iter().zip(&values).try_for_each(|(key, value)| {
        let mut element = MapElement::new(states, &raw const *key, &raw const *value);
        // SAFETY: the key and the value live during the call.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut element) }.map(drop)
    })?;
    Ok(false)
}
