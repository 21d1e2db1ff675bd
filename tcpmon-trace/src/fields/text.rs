//! How texts that are not strings in a record are spelt in a line.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use crate::record::Comm;

/// A socket's cookie in hexadecimal, as `ss -e` shows it after `sk:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cookie(pub(crate) u64);

impl From<u64> for Cookie {
    fn from(cookie: u64) -> Self {
        Self(cookie)
    }
}

impl From<Cookie> for u64 {
    fn from(cookie: Cookie) -> Self {
        cookie.0
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl Serialize for Cookie {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cookie {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse = |text: &str| match text.starts_with('+') {
            true => None,
            false => u64::from_str_radix(text, 16).ok().map(Cookie),
        };
        from.deserialize_str(Text { expected: "a cookie in hexadecimal", parse })
    }
}

impl Serialize for Comm {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Comm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse = |text: &str| Comm::try_from(text).ok();
        from.deserialize_str(Text { expected: "a name of at most 16 bytes without NUL", parse })
    }
}

/// Parses a value from a string without keeping the string.
struct Text<F> {
    expected: &'static str,
    parse: F,
}

impl<T, F: FnOnce(&str) -> Option<T>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).ok_or_else(|| E::custom(format_args!("{text:?} is not {}", self.expected)))
    }
}
