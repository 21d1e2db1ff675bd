//! The keys and values of a record, for formats in which a record is a row. The names are those of the JSON Lines
//! format, whose lines define them.

use serde::{
    Serialize,
    ser::{Error as _, Impossible, SerializeStruct, Serializer},
};

use crate::{header::TraceHeader, jsonl::line::TimesliceLine, record::TimesliceRecord};

/// The key that is used only in JSON Lines.
const TYPE: &str = "type";

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'v> {
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
}

/// Calls `take` with each key of a record and its value, always in the same order. The first keys say on which host and
/// when, because rows of several hosts can be in one table.
pub fn each(header: &TraceHeader, record: &TimesliceRecord, take: impl FnMut(&'static str, FieldValue<'_>)) {
    let mut take = take;
    let wall_ns = header.start.wall_ns(record.activated_ns);
    take("hostname", FieldValue::Text(&header.hostname));
    take("activated_time", FieldValue::Time(wall_ns / 1000));
    take("activated_realtime_ns", FieldValue::Integer(wall_ns));
    let mut fields = Fields { name: "", take };
    let line = TimesliceLine::from(record);
    // A line has only fields that a `FieldValue` can be.
    line.serialize(&mut fields).expect("every key of a record has a simple value");
}

/// A serializer that takes the fields of a structure apart.
struct Fields<F> {
    /// Name of the field whose value comes next.
    name: &'static str,
    take: F,
}

/// A value of a kind that no record has.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotSimple(String);

impl serde::ser::Error for NotSimple {
    fn custom<T: std::fmt::Display>(what: T) -> Self {
        Self(what.to_string())
    }
}

impl<F: FnMut(&'static str, FieldValue<'_>)> Fields<F> {
    fn value(&mut self, value: FieldValue<'_>) -> Result<(), NotSimple> {
        if self.name != TYPE {
            (self.take)(self.name, value);
        }
        Ok(())
    }
}

impl<F: FnMut(&'static str, FieldValue<'_>)> SerializeStruct for &mut Fields<F> {
    type Ok = ();
    type Error = NotSimple;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), NotSimple> {
        self.name = name;
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), NotSimple> {
        Ok(())
    }
}

/// Methods for kinds of values that no record has.
macro_rules! not_simple {
    ($($method:ident($($kind:ty),*) -> $ok:ty;)*) => {
        $(fn $method(self, $(_: $kind),*) -> Result<$ok, NotSimple> {
            Err(NotSimple::custom(stringify!($method)))
        })*
    };
}

impl<F: FnMut(&'static str, FieldValue<'_>)> Serializer for &mut Fields<F> {
    type Ok = ();
    type Error = NotSimple;
    type SerializeSeq = Impossible<(), NotSimple>;
    type SerializeTuple = Impossible<(), NotSimple>;
    type SerializeTupleStruct = Impossible<(), NotSimple>;
    type SerializeTupleVariant = Impossible<(), NotSimple>;
    type SerializeMap = Impossible<(), NotSimple>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Impossible<(), NotSimple>;

    fn serialize_bool(self, value: bool) -> Result<(), NotSimple> {
        self.value(FieldValue::Flag(value))
    }

    fn serialize_u8(self, value: u8) -> Result<(), NotSimple> {
        self.value(FieldValue::Small(value.into()))
    }

    fn serialize_u16(self, value: u16) -> Result<(), NotSimple> {
        self.value(FieldValue::Small(value))
    }

    fn serialize_u32(self, value: u32) -> Result<(), NotSimple> {
        self.value(FieldValue::Integer(value.into()))
    }

    fn serialize_u64(self, value: u64) -> Result<(), NotSimple> {
        self.value(FieldValue::Integer(value))
    }

    fn serialize_str(self, text: &str) -> Result<(), NotSimple> {
        self.value(FieldValue::Text(text))
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), NotSimple> {
        self.value(FieldValue::Text(variant))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, NotSimple> {
        Ok(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<(), NotSimple> {
        Err(NotSimple::custom("serialize_some"))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, _: &T) -> Result<(), NotSimple> {
        Err(NotSimple::custom("serialize_newtype_struct"))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), NotSimple> {
        Err(NotSimple::custom("serialize_newtype_variant"))
    }

    not_simple! {
        serialize_i8(i8) -> ();
        serialize_i16(i16) -> ();
        serialize_i32(i32) -> ();
        serialize_i64(i64) -> ();
        serialize_f32(f32) -> ();
        serialize_f64(f64) -> ();
        serialize_char(char) -> ();
        serialize_bytes(&[u8]) -> ();
        serialize_none() -> ();
        serialize_unit() -> ();
        serialize_unit_struct(&'static str) -> ();
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }
}
