//! One file per tracepoint subject.

mod drop;
mod exit;
mod floor;
mod fork;
mod growth;
mod lifecycle;
mod memory_limit;
mod napi;
mod read;
mod sched;
mod segment;
