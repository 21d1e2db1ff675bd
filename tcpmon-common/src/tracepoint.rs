//! The arguments that the programs take from each tracepoint, and the fields that iterators are passed.
//!
//! The programs are built before the kernel is known, and the verifier allows them only constant positions. So user
//! space compares each of these with the running kernel before anything is loaded.

use core::{ffi::c_void, mem::offset_of};

/// An argument of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedArgument {
    /// Position, from 0.
    pub position: usize,
    /// The type that the programs expect.
    pub kind: ExpectedType,
    /// Older kernels do not pass it, and the programs can do without it.
    pub optional: bool,
}

/// The type of an argument, without typedefs and qualifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedType {
    /// A pointer to the structure of this name.
    Pointer(&'static str),
    /// An integer or bool of this many bytes.
    Integer(u32),
    /// The enum of this name.
    Enum(&'static str),
}

const fn argument(position: usize, kind: ExpectedType) -> ExpectedArgument {
    ExpectedArgument { position, kind, optional: false }
}

/// Makes one module for each tracepoint, with its arguments and a list of all of them, `ARGUMENTS`.
macro_rules! tracepoints {
    ($($tracepoint:ident { $($(#[$doc:meta])+ $name:ident = $argument:expr;)+ })+) => {
        $(
            #[doc = concat!("Arguments of `", stringify!($tracepoint), "`.")]
            pub mod $tracepoint {
                use super::{ExpectedArgument, ExpectedType, argument};

                $($(#[$doc])+ pub const $name: ExpectedArgument = $argument;)+
                /// All arguments that the programs take.
                pub const ARGUMENTS: &[ExpectedArgument] = &[$($name),+];
            }
        )+
    };
}

tracepoints! {
    inet_sock_set_state {
        /// The socket.
        SOCK = argument(0, ExpectedType::Pointer("sock"));
        /// The old state.
        OLD = argument(1, ExpectedType::Integer(4));
        /// The new state.
        NEW = argument(2, ExpectedType::Integer(4));
    }
    tcp_destroy_sock {
        /// The socket.
        SOCK = argument(0, ExpectedType::Pointer("sock"));
    }
    tcp_rcv_space_adjust {
        /// The socket.
        SOCK = argument(0, ExpectedType::Pointer("sock"));
    }
    tcp_probe {
        /// The socket.
        SOCK = argument(0, ExpectedType::Pointer("sock"));
        /// The segment.
        SKB = argument(1, ExpectedType::Pointer("sk_buff"));
    }
    sched_switch {
        /// Whether the thread was preempted, that is, could have continued to run.
        PREEMPT = argument(0, ExpectedType::Integer(1));
        /// The thread that leaves the CPU.
        PREV = argument(1, ExpectedType::Pointer("task_struct"));
        /// The thread that gets the CPU.
        NEXT = argument(2, ExpectedType::Pointer("task_struct"));
        /// The state of the thread that leaves the CPU (5.18).
        PREV_STATE = ExpectedArgument { optional: true, ..argument(3, ExpectedType::Integer(4)) };
    }
    sched_process_fork {
        /// The process that starts another, or a thread.
        PARENT = argument(0, ExpectedType::Pointer("task_struct"));
        /// The first thread of the new process, or the new thread.
        CHILD = argument(1, ExpectedType::Pointer("task_struct"));
    }
    sched_process_exit {
        /// The thread that ends.
        TASK = argument(0, ExpectedType::Pointer("task_struct"));
    }
    tcp_rcvbuf_grow {
        /// The socket.
        SOCK = argument(0, ExpectedType::Pointer("sock"));
    }
    kfree_skb {
        /// Why the packet is dropped (5.17).
        REASON = argument(2, ExpectedType::Enum("skb_drop_reason"));
        /// The socket that it was for (6.11).
        SOCK = argument(3, ExpectedType::Pointer("sock"));
    }
    napi_poll {
        /// The NAPI instance.
        NAPI = argument(0, ExpectedType::Pointer("napi_struct"));
        /// Packets processed.
        WORK = argument(1, ExpectedType::Integer(4));
        /// Packets allowed.
        BUDGET = argument(2, ExpectedType::Integer(4));
    }
    sock_exceed_buf_limit {
        /// The socket.
        SOCK = argument(0, ExpectedType::Pointer("sock"));
        /// What the memory was for.
        KIND = argument(3, ExpectedType::Integer(4));
    }
}

/// `struct bpf_iter__task_file`.
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's fields")]
pub struct TaskFile {
    pub meta: *const IteratorMeta,
    pub task: *const u8,
    pub fd: u64,
    pub file: *mut c_void,
}

/// The first member of `struct bpf_iter_meta`.
#[repr(C)]
pub struct IteratorMeta {
    /// User space reads from the iterator what a program writes here.
    pub output: *mut c_void,
}

/// The fields of the iterators' contexts that the programs read: structure, field, offset.
pub const ITERATOR_FIELDS: &[(&str, &str, usize)] = &[
    ("bpf_iter__task_file", "task", offset_of!(TaskFile, task)),
    ("bpf_iter__task_file", "fd", offset_of!(TaskFile, fd)),
    ("bpf_iter__task_file", "file", offset_of!(TaskFile, file)),
    ("bpf_iter__task_file", "meta", offset_of!(TaskFile, meta)),
    ("bpf_iter_meta", "seq", offset_of!(IteratorMeta, output)),
];
