//! What `tcpmon top` shows. `rates` and `rows` turn samples into rows, `screen` is the state that keys change, and
//! `draw` and `plain` show it. Nothing here does I/O or reads a clock, and code that changes the state never draws.

mod advice;
mod draw;
#[cfg(test)]
pub(crate) mod fixture;
pub mod plain;
mod rates;
mod rows;
mod screen;
mod select;
mod theme;

pub use self::{
    draw::draw,
    rows::{Row, Rows},
    screen::{Key, Reaction, Screen, Source},
    select::{RowFilter, SortKey},
    theme::Theme,
};
