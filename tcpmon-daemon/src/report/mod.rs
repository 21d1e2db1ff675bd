//! Reports on traces: what limited a transfer, how sure that is, and what would help.
//!
//! [`read`] sums a trace up in bounded memory, [`verdict`] decides from the sums, [`compare`] compares two
//! traces, [`render`] shows the result as text or JSON, and [`html`] as a page, with what [`timeline`] has kept.

pub mod compare;
pub mod evidence;
pub mod html;
pub mod read;
pub mod render;
pub mod timeline;
pub mod verdict;
