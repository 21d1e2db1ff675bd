//! A key of a line, for formats in which a record is a row.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, UNIX_EPOCH},
};

use humantime::format_rfc3339_micros;

use super::{lines::TimesliceLine, text::Cookie};
use crate::{
    header::TraceHeader,
    record::{AddressFamily, Comm, TimesliceEnd, TimesliceRecord},
};

/// A key of the line of an `R`.
pub(crate) struct Field<R: 'static> {
    /// Its name, whose last part is its unit.
    pub(crate) key: &'static str,
    /// Its value.
    pub(crate) get: for<'v> fn(&'v TraceHeader, &'v R) -> FieldValue<'v>,
    #[cfg(test)]
    pub(crate) about: About,
}

/// What the documents say of a key.
#[cfg(test)]
pub(crate) struct About {
    /// What it means, in Markdown.
    pub(crate) meaning: &'static str,
    /// Where the value comes from; empty if that is obvious.
    pub(crate) source: &'static str,
    /// It is not in the traces of the first version that had the format.
    pub(crate) is_later: bool,
}

/// The columns before the keys: on which host and when, because rows of several hosts can be in one table.
pub(crate) const OF_TRACE: &[Field<TimesliceRecord>] = &[
    Field {
        key: "hostname",
        get: |header, _| FieldValue::Text(&header.hostname),
        #[cfg(test)]
        about: About::of("as in the header, so that rows of several hosts can be in one table"),
    },
    Field {
        key: "activated_time",
        get: |header, record| FieldValue::Time(header.start.wall_ns(record.activated_ns) / 1000),
        #[cfg(test)]
        about: About::of(
            "`activated_ns` on the wall clock, UTC, in microseconds: Spark refuses a file with a time in nanoseconds",
        ),
    },
    Field {
        key: "activated_realtime_ns",
        get: |header, record| FieldValue::Integer(header.start.wall_ns(record.activated_ns)),
        #[cfg(test)]
        about: About::of("the same in nanoseconds since 1970-01-01 UTC, as an integer"),
    },
];

#[cfg(test)]
impl About {
    const fn of(meaning: &'static str) -> Self {
        Self { meaning, source: "", is_later: false }
    }
}

/// The columns of a row.
pub(crate) fn columns() -> impl Iterator<Item = &'static Field<TimesliceRecord>> {
    OF_TRACE.iter().chain(TimesliceLine::FIELDS)
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FieldValue<'v> {
    /// An integer of at most 16 bits.
    Small(u16),
    /// An integer of more bits.
    Integer(u64),
    /// A wall time, us since 1970-01-01 UTC.
    Time(u64),
    /// True or false.
    Flag(bool),
    /// A text.
    Text(&'v str),
    /// A text: the name of a thread.
    Comm(Comm),
    /// A text: a cookie in hexadecimal.
    Cookie(u64),
    /// A text: an address.
    Address(IpAddr),
}

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Time(us) => format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(*us)).fmt(f),
            Self::Flag(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
            Self::Comm(comm) => comm.as_str().fmt(f),
            Self::Cookie(cookie) => write!(f, "{cookie:x}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Which value each type of a key is.
macro_rules! values {
    ($($type:ident: $value:ident => $kind:ident($as:expr);)*) => {
        $(impl From<$type> for FieldValue<'_> {
            fn from($value: $type) -> Self {
                Self::$kind($as)
            }
        })*
    };
}

values! {
    u16: value => Small(value);
    u32: value => Integer(value.into());
    u64: value => Integer(value);
    bool: value => Flag(value);
    AddressFamily: family => Small(u8::from(family).into());
    TimesliceEnd: end => Text(end.name());
    Comm: comm => Comm(comm);
    Cookie: cookie => Cookie(cookie.0);
    IpAddr: address => Address(address);
}
