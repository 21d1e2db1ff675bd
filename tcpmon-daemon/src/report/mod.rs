//! Reports on traces: what limited a transfer, how sure that is, and what would help.
//!
//! [`read`] sums a trace up in bounded memory, [`verdict`] decides from the sums, [`compare`] holds two traces against
//! each other, and [`tell`] shows the result.

pub mod compare;
pub mod evidence;
pub mod read;
pub mod tell;
pub mod verdict;
