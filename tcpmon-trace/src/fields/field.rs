//! A key of a line, for formats in which a record is a row.

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, UNIX_EPOCH},
};

use humantime::format_rfc3339_micros;
use serde::{
    Deserializer,
    de::{self, Visitor, value::StrDeserializer},
    forward_to_deserialize_any,
};

use super::text::Cookie;
use crate::{
    header::TraceHeader,
    record::{AddressFamily, Comm, TimesliceEnd},
};

/// Gets the value of a key from the trace's header and a record.
type Get<R> = for<'v> fn(&'v TraceHeader, &'v R) -> FieldValue<'v>;

/// Sets a key of a record.
type Set<R> = fn(&mut R, FieldValue<'_>) -> Result<(), de::value::Error>;

/// A key of the line of an `R`.
#[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "only Parquet reads values one by one"))]
pub(crate) struct Field<R: 'static> {
    /// Its name, whose last part is its unit.
    pub(crate) key: &'static str,
    /// Its value.
    pub(crate) get: Get<R>,
    /// Sets it to a value that was read; `None` if it follows from other keys.
    pub(crate) set: Option<Set<R>>,
    /// It is not in the traces of the first version that had the format.
    pub(crate) is_later: bool,
    /// What it means, in Markdown.
    #[cfg(test)]
    pub(crate) meaning: &'static str,
    /// Where the value comes from; empty if that is obvious.
    #[cfg(test)]
    pub(crate) source: &'static str,
}

impl<R> Field<R> {
    /// A key that is not read, because it follows from other keys.
    pub(crate) const fn computed(key: &'static str, meaning: &'static str, get: Get<R>) -> Self {
        #[cfg(not(test))]
        let _ = meaning;
        Self {
            key,
            get,
            set: None,
            is_later: false,
            #[cfg(test)]
            meaning,
            #[cfg(test)]
            source: "",
        }
    }
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
    Cookie(Cookie),
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
            Self::Cookie(cookie) => cookie.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl<'de> Deserializer<'de> for FieldValue<'de> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self {
            Self::Small(value) => visitor.visit_u16(value),
            Self::Integer(value) | Self::Time(value) => visitor.visit_u64(value),
            Self::Flag(value) => visitor.visit_bool(value),
            Self::Text(text) => visitor.visit_borrowed_str(text),
            Self::Comm(_) | Self::Cookie(_) | Self::Address(_) => visitor.visit_string(self.to_string()),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        match self {
            Self::Text(text) => StrDeserializer::new(text).deserialize_enum(name, variants, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
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
    Cookie: cookie => Cookie(cookie);
    IpAddr: address => Address(address);
}
