//! The form that the Perfetto UI and its trace processor read. `docs/trace-format.md` describes the tracks.

mod message;
mod write;

pub use write::PerfettoWriter;
