//! The columns of a row group in memory.

use std::{collections::HashMap, sync::Arc};

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

/// The values of one column.
#[derive(Debug)]
struct BufferedColumn {
    name: &'static str,
    values: ColumnValues,
}

#[derive(Debug)]
enum ColumnValues {
    Small(Vec<i32>),
    Integer(Vec<i64>),
    Time(Vec<i64>),
    Flag(Vec<bool>),
    Text(Texts),
}

/// Texts, most of which are equal to others.
#[derive(Debug, Default)]
struct Texts {
    rows: Vec<ByteArray>,
    known: HashMap<Box<str>, ByteArray>,
}

/// Rows that are not written yet.
#[derive(Debug)]
pub struct Columns {
    columns: Vec<BufferedColumn>,
    rows: usize,
}

impl Columns {
    /// Columns for records like this one, without rows.
    pub fn new(header: &TraceHeader, record: &TimesliceRecord) -> Self {
        let columns = columns().map(|column| {
            let values = match (column.get)(header, record) {
                FieldValue::Small(_) => ColumnValues::Small(Vec::new()),
                FieldValue::Integer(_) => ColumnValues::Integer(Vec::new()),
                FieldValue::Time(_) => ColumnValues::Time(Vec::new()),
                FieldValue::Flag(_) => ColumnValues::Flag(Vec::new()),
                _ => ColumnValues::Text(Texts::default()),
            };
            BufferedColumn { name: column.key, values }
        });
        Self { columns: columns.collect(), rows: 0 }
    }

    /// Adds a row.
    pub fn push(&mut self, header: &TraceHeader, record: &TimesliceRecord) {
        for (column, buffered) in columns().zip(&mut self.columns) {
            match (&mut buffered.values, (column.get)(header, record)) {
                (ColumnValues::Small(column), FieldValue::Small(value)) => column.push(value.into()),
                (ColumnValues::Integer(column), FieldValue::Integer(value))
                | (ColumnValues::Time(column), FieldValue::Time(value)) => {
                    column.push(i64::try_from(value).unwrap_or(i64::MAX));
                }
                (ColumnValues::Flag(column), FieldValue::Flag(value)) => column.push(value),
                (ColumnValues::Text(column), value) => column.push(&value.to_string()),
                _ => unreachable!("every record has the same kinds of values"),
            }
        }
        self.rows += 1;
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns' names and types.
    pub fn schema(&self) -> Result<TypePtr> {
        let fields = self.columns.iter().map(|column| {
            let (physical, logical) = match column.values {
                ColumnValues::Small(_) => (PhysicalType::INT32, None),
                ColumnValues::Integer(_) => (PhysicalType::INT64, None),
                ColumnValues::Time(_) => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
                ColumnValues::Flag(_) => (PhysicalType::BOOLEAN, None),
                ColumnValues::Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            };
            let field = Type::primitive_type_builder(column.name, physical);
            Ok(Arc::new(field.with_repetition(Repetition::REQUIRED).with_logical_type(logical).build()?))
        });
        let fields = fields.collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Type::group_type_builder("timeslice").with_fields(fields).build()?))
    }

    /// The encodings of columns whose values are nearly all different: a dictionary would only cost time.
    pub fn encodings(&self) -> impl Iterator<Item = (ColumnPath, Encoding)> + '_ {
        let rising = self.columns.iter().filter(|column| {
            matches!(column.values, ColumnValues::Time(_))
                || column.name.ends_with("_ns")
                || column.name.ends_with("_byte_us")
        });
        rising.map(|column| (ColumnPath::from(column.name), Encoding::DELTA_BINARY_PACKED))
    }

    /// Writes all rows as a row group. They stay here until they are [cleared](Self::clear).
    pub fn write<W: std::io::Write + Send>(&self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<()> {
        for column in &self.columns {
            let Some(mut writer) = group.next_column()? else {
                unreachable!("the schema was made of these columns");
            };
            match (&column.values, writer.untyped()) {
                (ColumnValues::Small(values), ColumnWriter::Int32ColumnWriter(writer)) => {
                    writer.write_batch(values, None, None)?
                }
                (
                    ColumnValues::Integer(values) | ColumnValues::Time(values),
                    ColumnWriter::Int64ColumnWriter(writer),
                ) => writer.write_batch(values, None, None)?,
                (ColumnValues::Flag(values), ColumnWriter::BoolColumnWriter(writer)) => {
                    writer.write_batch(values, None, None)?
                }
                (ColumnValues::Text(values), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                    writer.write_batch(&values.rows, None, None)?
                }
                _ => unreachable!("the schema was made of these columns"),
            };
            writer.close()?;
        }
        Ok(())
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        for column in &mut self.columns {
            match &mut column.values {
                ColumnValues::Small(values) => values.clear(),
                ColumnValues::Integer(values) | ColumnValues::Time(values) => values.clear(),
                ColumnValues::Flag(values) => values.clear(),
                ColumnValues::Text(values) => *values = Texts::default(),
            }
        }
        self.rows = 0;
    }
}

impl Texts {
    fn push(&mut self, text: &str) {
        let last = self.rows.last().filter(|last| last.data() == text.as_bytes());
        let row = match last.or_else(|| self.known.get(text)) {
            Some(known) => known.clone(),
            None => {
                let new = ByteArray::from(text);
                self.known.insert(text.into(), new.clone());
                new
            }
        };
        self.rows.push(row);
    }
}
