//! Reads a trace from Parquet.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufReader, Read, Seek as _, SeekFrom},
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use ::parquet::{
    basic::Type,
    column::reader::ColumnReaderImpl,
    data_type::{BoolType, ByteArrayType, DataType, Int32Type, Int64Type},
    errors::{ParquetError, Result},
    file::{
        metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData},
        reader::{ChunkReader, Length},
        serialized_reader::SerializedPageReader,
    },
};
use bytes::Bytes;

use super::{footer, metadata};
use crate::{
    fields::{Field, FieldValue, TimesliceLine},
    header::TraceHeader,
    input::{Item, TraceReader},
    jsonl::{ReadError, read},
    record::TimesliceRecord,
    trailer::Trailer,
};

/// Rows that are decoded at a time.
const BATCH: usize = 1024;

/// Reads a trace from a Parquet file, record by record. A file that was cut is read up to the last footer in it.
pub struct ParquetReader {
    /// The part of the file that is being read, up to its footer.
    part: FilePart,
    /// The parts that come after it, if the file was cut: each part has one row group.
    parts: VecDeque<FilePart>,
    header: TraceHeader,
    trailer: Option<Trailer>,
    /// The next row group.
    group: usize,
    /// Rows of the current row group that have not been decoded.
    rows: usize,
    /// The columns of the current row group.
    columns: Vec<(&'static Column, ColumnCursor)>,
    /// Items that have been decoded.
    items: VecDeque<Item>,
    /// Everything has been decoded.
    decoded: bool,
    records: u64,
    ended: bool,
}

/// The file up to a footer, and that footer.
struct FilePart {
    file: Arc<Beginning>,
    metadata: ParquetMetaData,
}

impl FilePart {
    fn new(file: &File, length: u64) -> Result<Self> {
        let file = Beginning { file: file.try_clone()?, length };
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file)?;
        Ok(Self { file: Arc::new(file), metadata })
    }

    /// A value of the metadata.
    fn entry(&self, name: &str) -> Option<&str> {
        let mut entries = self.metadata.file_metadata().key_value_metadata().into_iter().flatten();
        entries.find(|entry| entry.key == name)?.value.as_deref()
    }
}

/// The bytes of the file up to a footer.
struct Beginning {
    file: File,
    length: u64,
}

impl Length for Beginning {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Beginning {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(file))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = Vec::new();
        self.get_read(start)?.take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() != length {
            return Err(ParquetError::EOF(format!("{} of {length} bytes at byte {start}", bytes.len())));
        }
        Ok(bytes.into())
    }
}

impl ParquetReader {
    /// Whether a file begins like Parquet.
    pub fn is_parquet(begin: &[u8]) -> bool {
        begin.starts_with(footer::MAGIC)
    }

    /// Reads the footer.
    pub fn new(file: File) -> std::result::Result<Self, ReadError> {
        caught(|| Self::open(file))
    }

    fn open(file: File) -> std::result::Result<Self, ReadError> {
        let io = |source| ReadError::Io { offset: 0, source };
        let length = file.metadata().map_err(io)?.len();
        let up_to = |end| FilePart::new(&file, end).map_err(bad);
        let mut last = match up_to(length) {
            Ok(whole) => Some(whole),
            Err(_) => footer::find_last(&file).map_err(io)?.map(up_to).transpose()?,
        };
        let mut parts = VecDeque::new();
        while let Some(part) = last {
            // Only the footer of a single row group has this entry: files of tcpmon 0.1 could end in one. Each footer
            // must be before the next one, so that the loop ends even in a broken file.
            let previous = part.entry(metadata::PREVIOUS).and_then(|end| end.parse().ok());
            last = previous.filter(|end| *end < part.file.length).map(up_to).transpose()?;
            parts.push_front(part);
        }
        let part = parts.pop_front().ok_or(ReadError::NoFooter)?;
        let header = part.entry(metadata::HEADER).ok_or_else(|| ReadError::NotATrace {
            offset: 0,
            reason: format!("a Parquet file without the key {}", metadata::HEADER),
        })?;
        let header = read::header_of(header)?;
        let trailer = part.entry(metadata::TRAILER).map(read::trailer_of).transpose()?;
        Ok(Self {
            part,
            parts,
            header,
            trailer,
            group: 0,
            rows: 0,
            columns: Vec::new(),
            items: VecDeque::new(),
            decoded: false,
            records: 0,
            ended: false,
        })
    }

    fn item(&mut self) -> std::result::Result<Option<Item>, ReadError> {
        while self.items.is_empty() && !self.decoded {
            caught(|| self.decode())?;
        }
        if let Some(item) = self.items.pop_front() {
            self.records += u64::from(matches!(item, Item::Timeslice(_)));
            return Ok(Some(item));
        }
        match &self.trailer {
            None => Err(ReadError::CutParquet { records: self.records }),
            Some(trailer) if trailer.records != self.records => Err(ReadError::Parquet {
                reason: format!("its trailer counts {} records, but it has {}", trailer.records, self.records),
            }),
            Some(_) => Ok(None),
        }
    }

    /// Decodes a batch of rows, or the totals after the last.
    fn decode(&mut self) -> std::result::Result<(), ReadError> {
        if self.rows > 0 {
            let mut records = vec![TimesliceRecord::EMPTY; self.rows.min(BATCH)];
            self.rows -= records.len();
            for (field, column) in &mut self.columns {
                column.read(&mut records, field).map_err(|reason| ReadError::Parquet { reason })?;
            }
            for record in records {
                let record = record.checked().map_err(|reason| ReadError::Parquet { reason: reason.into() })?;
                self.items.push_back(Item::Timeslice(Box::new(record)));
            }
        } else if let Some(group) = self.part.metadata.row_groups().get(self.group) {
            self.group += 1;
            self.rows = usize::try_from(group.num_rows()).map_err(|error| bad(error.into()))?;
            self.columns = ColumnCursor::all(&self.part.file, group, self.rows).map_err(bad)?;
        } else if let Some(next) = self.parts.pop_front() {
            self.part = next;
            self.group = 0;
        } else {
            self.decoded = true;
            for line in self.part.entry(metadata::TOTALS).unwrap_or_default().lines() {
                self.items.extend(read::total_of(line)?);
            }
        }
        Ok(())
    }
}

impl TraceReader for ParquetReader {
    fn header(&self) -> &TraceHeader {
        &self.header
    }

    fn next_item(&mut self) -> Option<std::result::Result<Item, ReadError>> {
        if self.ended {
            return None;
        }
        let item = self.item().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        if matches!(item, Some(Err(_))) {
            self.trailer = None;
        }
        item
    }

    fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref().filter(|_| self.ended)
    }

    fn records(&self) -> u64 {
        self.records
    }
}

/// Reads with the library, and turns its panics at some damaged files into errors.
fn caught<T>(read: impl FnOnce() -> std::result::Result<T, ReadError>) -> std::result::Result<T, ReadError> {
    panic::catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(ReadError::Parquet { reason: "its metadata or a page is damaged".into() }))
}

fn bad(error: ParquetError) -> ReadError {
    ReadError::Parquet { reason: error.to_string() }
}

/// What a column is read into.
type Column = Field<TimesliceRecord>;

/// A column of one of the types that fields have.
enum ColumnCursor {
    Flags(ColumnReaderImpl<BoolType>),
    Small(ColumnReaderImpl<Int32Type>),
    Integers(ColumnReaderImpl<Int64Type>),
    Texts(ColumnReaderImpl<ByteArrayType>),
}

impl ColumnCursor {
    /// The columns of the fields that a row group has.
    fn all(file: &Arc<Beginning>, group: &RowGroupMetaData, rows: usize) -> Result<Vec<(&'static Column, Self)>> {
        let mut all = Vec::new();
        for field in TimesliceLine::FIELDS {
            let mut columns = group.columns().iter();
            let column = columns.find(|column| *column.column_path().parts() == [field.key]);
            match column.map(|column| Self::new(file, column, rows)).transpose()?.flatten() {
                Some(column) => all.push((field, column)),
                None if field.is_later => {}
                None => return Err(ParquetError::General(format!("there is no column {} of its type", field.key))),
            }
        }
        Ok(all)
    }

    /// A reader for a column of a row group; `None` if the column has a type that no field has.
    fn new(file: &Arc<Beginning>, column: &ColumnChunkMetaData, rows: usize) -> Result<Option<Self>> {
        let pages = Box::new(SerializedPageReader::new(Arc::clone(file), column, rows, None)?);
        let description = column.column_descr_ptr();
        if description.max_def_level() > 0 {
            return Err(ParquetError::General(format!("column {} may have nulls", description.name())));
        }
        Ok(match column.column_type() {
            Type::BOOLEAN => Some(Self::Flags(ColumnReaderImpl::new(description, pages))),
            Type::INT32 => Some(Self::Small(ColumnReaderImpl::new(description, pages))),
            Type::INT64 => Some(Self::Integers(ColumnReaderImpl::new(description, pages))),
            Type::BYTE_ARRAY => Some(Self::Texts(ColumnReaderImpl::new(description, pages))),
            _ => None,
        })
    }

    /// Reads the field of the next records.
    fn read(&mut self, records: &mut [TimesliceRecord], field: &Column) -> std::result::Result<(), String> {
        let integer = |value| u64::try_from(value).map(FieldValue::Integer).map_err(|_| format!("{value} is negative"));
        match self {
            Self::Flags(column) => values(column, records, field, |value| Ok(FieldValue::Flag(*value))),
            Self::Small(column) => values(column, records, field, |value| integer(i64::from(*value))),
            Self::Integers(column) => values(column, records, field, |value| integer(*value)),
            Self::Texts(column) => values(column, records, field, |value| {
                value.as_utf8().map(FieldValue::Text).map_err(|error| error.to_string())
            }),
        }
        .map_err(|reason| format!("column {}: {reason}", field.key))
    }
}

/// Reads a column, which has no nulls, into a field of as many records.
fn values<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    records: &mut [TimesliceRecord],
    field: &Column,
    value_of: impl Fn(&T::T) -> std::result::Result<FieldValue<'_>, String>,
) -> std::result::Result<(), String> {
    let mut values = Vec::with_capacity(records.len());
    column.read_records(records.len(), None, None, &mut values).map_err(|error| error.to_string())?;
    if values.len() != records.len() {
        return Err("it has too few rows".into());
    }
    let Some(set) = field.set else { return Ok(()) };
    for (record, value) in records.iter_mut().zip(&values) {
        set(record, value_of(value)?).map_err(|error| error.to_string())?;
    }
    Ok(())
}
