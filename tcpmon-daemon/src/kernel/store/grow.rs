//! Adds arrays of states. To create one takes CAP_BPF, which tcpmon gives up: a thread keeps just that.
#![expect(unsafe_code, reason = "bpf(2) calls that no crate wraps")]

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    sync::mpsc::{Receiver, Sender},
};

use aya::maps::MapData;
use tcpmon_common::{socket::SocketState, store::BLOCK};

use super::{FreeStates, SPARE, free_state};
use crate::kernel::{
    bpf::{BPF_BTF_LOAD, BPF_MAP_CREATE, BPF_MAP_UPDATE_BATCH, BPF_MAP_UPDATE_ELEM, MapElement, bpf},
    mapped::Mapped,
};

/// The most arrays that are added at once; each has an open descriptor until then.
const MOST_AT_ONCE: u32 = 64;

/// Of `enum bpf_map_type`.
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

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

/// Makes arrays of states: as many as the store asks for, and more when few states are left. It ends with the store.
pub struct Grower {
    /// The array of arrays.
    states: MapData,
    free: FreeStates,
    types: OwnedFd,
    /// Arrays that there are, and the most that there may be.
    blocks: u32,
    max_blocks: u32,
    asked: Receiver<u32>,
    made: Sender<io::Result<Mapped<SocketState>>>,
}

impl Grower {
    pub(super) fn new(
        states: MapData,
        free: FreeStates,
        max_blocks: u32,
        asked: Receiver<u32>,
        made: Sender<io::Result<Mapped<SocketState>>>,
    ) -> io::Result<Self> {
        Ok(Self { states, free, types: load_types()?, blocks: 0, max_blocks, asked, made })
    }

    /// Works until the store is gone.
    pub fn run(mut self) {
        while let Ok(wanted) = self.asked.recv() {
            loop {
                let few = SPARE.saturating_sub(self.free.free()).div_ceil(BLOCK);
                let count = few.max(wanted.saturating_sub(self.blocks)).min(self.max_blocks.saturating_sub(self.blocks));
                if count == 0 {
                    break;
                }
                let added = self.add(count.min(MOST_AT_ONCE));
                self.free.set_wake();
                if let Err(error) = added {
                    // Without a store, there is nobody to tell.
                    let _ = self.made.send(Err(error));
                    break;
                }
            }
        }
    }

    /// Adds so many arrays of states, all of them free, or as many as the kernel grants.
    pub(super) fn add(&mut self, count: u32) -> io::Result<()> {
        let mut blocks = Vec::new();
        let refused = (0..count).try_for_each(|_| create_block(&self.types).map(|block| blocks.push(block)));
        if let Some(last) = blocks.last() {
            let first = self.blocks * BLOCK;
            let mapped: Vec<Mapped<SocketState>> =
                blocks.iter().map(|block| Mapped::map(block.as_fd(), BLOCK as usize)).collect::<Result<_, _>>()?;
            for (block, first) in mapped.iter().zip((first..).step_by(BLOCK as usize)) {
                for place in 0..BLOCK {
                    // The lowest is taken first, so that passes stay short.
                    block.set(place as usize, free_state(0, first + place, first + place + 1));
                }
            }
            let last = Mapped::map(last.as_fd(), BLOCK as usize)?;
            // Programs find them from here on.
            set_blocks(self.states.fd().as_fd(), self.blocks, &blocks)?;
            self.blocks += blocks.len() as u32;
            // The store has them before any of their states can be taken: it finds each state that has ended.
            for block in mapped {
                let _ = self.made.send(Ok(block));
            }
            self.free.give(first, &last, BLOCK as usize - 1, blocks.len() as u32 * BLOCK);
        }
        refused
    }
}

/// Loads types for arrays of states: an integer as the key, and a structure without members as the value. Before Linux
/// 6.2, the array of arrays takes no array whose values have no structure, because it was made with one.
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

/// Puts arrays of states into the array of arrays, which keeps them: the first at this place.
///
/// The kernel waits after each call until no program sees the former content of a place, which takes it 4 to 15 ms, so
/// there is one call for all where there can be (Linux 5.19).
fn set_blocks(states: BorrowedFd<'_>, first: u32, blocks: &[OwnedFd]) -> io::Result<()> {
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
        return Ok(());
    }
    keys.iter().zip(&values).try_for_each(|(key, value)| {
        let mut element = MapElement::new(states, &raw const *key, &raw const *value);
        // SAFETY: the key and the value live during the call.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut element) }.map(drop)
    })
}
