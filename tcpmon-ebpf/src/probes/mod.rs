//! One file per tracepoint subject.

mod autotune;
mod drop;
mod floor;
mod lifecycle;
mod napi;
mod pressure;
mod read;
mod sched;
mod segment;
