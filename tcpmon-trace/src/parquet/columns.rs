//! The columns of a row group.

use std::{collections::HashMap, io::Write, sync::Arc};

use ::parquet::{
    basic::{Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType},
    column::writer::ColumnWriter,
    data_type::ByteArray,
    errors::Result,
    file::writer::SerializedRowGroupWriter,
    schema::types::{ColumnPath, Type, TypePtr},
};

use crate::{
    fields::{FieldValue, columns},
    header::TraceHeader,
    record::TimesliceRecord,
};

/// The columns' names and types.
pub fn schema(header: &TraceHeader) -> Result<TypePtr> {
    let fields = columns().map(|column| {
        let (physical, logical) = match (column.get)(header, &TimesliceRecord::EMPTY) {
            FieldValue::Small(_) => (PhysicalType::INT32, None),
            FieldValue::Integer(_) => (PhysicalType::INT64, None),
            FieldValue::Time(_) => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
            FieldValue::Flag(_) => (PhysicalType::BOOLEAN, None),
            FieldValue::Text(_) | FieldValue::Comm(_) | FieldValue::Cookie(_) | FieldValue::Address(_) => {
                (PhysicalType::BYTE_ARRAY, Some(LogicalType::String))
            }
        };
        let field = Type::primitive_type_builder(column.key, physical);
        Ok(Arc::new(field.with_repetition(Repetition::REQUIRED).with_logical_type(logical).build()?))
    });
    let fields = fields.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Type::group_type_builder("timeslice").with_fields(fields).build()?))
}

/// The encodings of columns whose values are nearly all different: a dictionary would only cost time.
pub fn encodings() -> impl Iterator<Item = (ColumnPath, Encoding)> {
    let rising = |key: &str| key == "activated_time" || key.ends_with("_ns") || key.ends_with("_byte_us");
    let rising = columns().filter(move |column| rising(column.key));
    rising.map(|column| (ColumnPath::from(column.key), Encoding::DELTA_BINARY_PACKED))
}

/// Writes records as a row group.
pub fn write<W: Write + Send>(
    header: &TraceHeader,
    records: &[TimesliceRecord],
    group: &mut SerializedRowGroupWriter<'_, W>,
) -> Result<()> {
    for column in columns() {
        let values = records.iter().map(|record| (column.get)(header, record));
        let Some(mut writer) = group.next_column()? else {
            unreachable!("the schema was made of these columns");
        };
        match writer.untyped() {
            ColumnWriter::BoolColumnWriter(writer) => {
                let flags: Vec<bool> = values.map(|value| value == FieldValue::Flag(true)).collect();
                writer.write_batch(&flags, None, None)?
            }
            ColumnWriter::Int32ColumnWriter(writer) => {
                let integers: Vec<i32> = values.map(|value| integer(value) as i32).collect();
                writer.write_batch(&integers, None, None)?
            }
            ColumnWriter::Int64ColumnWriter(writer) => {
                let integers: Vec<i64> = values.map(integer).collect();
                writer.write_batch(&integers, None, None)?
            }
            ColumnWriter::ByteArrayColumnWriter(writer) => writer.write_batch(&texts(values), None, None)?,
            _ => unreachable!("the schema was made of these columns"),
        };
        writer.close()?;
    }
    Ok(())
}

fn integer(value: FieldValue<'_>) -> i64 {
    match value {
        FieldValue::Small(value) => value.into(),
        FieldValue::Integer(value) | FieldValue::Time(value) => i64::try_from(value).unwrap_or(i64::MAX),
        _ => unreachable!("every record has the same kinds of values"),
    }
}

/// Texts, most of which are equal to others.
fn texts<'v>(values: impl Iterator<Item = FieldValue<'v>>) -> Vec<ByteArray> {
    let mut known: HashMap<FieldValue<'_>, ByteArray> = HashMap::new();
    let mut texts: Vec<ByteArray> = Vec::with_capacity(values.size_hint().0);
    let mut last = None;
    for value in values {
        match texts.last() {
            Some(text) if last == Some(value) => texts.push(text.clone()),
            _ => {
                let new = || ByteArray::from(value.to_string().into_bytes());
                texts.push(known.entry(value).or_insert_with(new).clone());
            }
        }
        last = Some(value);
    }
    texts
}
