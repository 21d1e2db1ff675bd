//! One file per tracepoint subject.

mod autotune;
mod drop;
mod lifecycle;
mod napi;
mod read;
mod sched;
mod segment;
