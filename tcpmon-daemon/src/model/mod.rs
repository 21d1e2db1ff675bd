//! The model: what tcpmon knows. There is no I/O here, and `now` is an argument.

pub mod cgroup_label;
pub mod cgroups;
mod group;
mod labels;
mod listeners;
pub mod live;
pub mod new_series;
mod possible;
pub mod service;
pub mod snapshot;
pub mod table;
mod tally;
mod tracked;
