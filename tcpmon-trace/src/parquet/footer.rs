//! The footer of a Parquet file, which says where everything is. Without it, nothing in the file can be read.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

use ::parquet::{
    errors::Result,
    file::metadata::{
        FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
    },
    schema::types::SchemaDescPtr,
};

/// The bytes at the beginning and the end of a Parquet file.
pub const MAGIC: &[u8; 4] = b"PAR1";

/// The length of the metadata comes before the last magic.
const LENGTH_AND_MAGIC: u64 = 8;

/// How much of a cut file is searched at a time.
const CHUNK: u64 = 1 << 20;

/// The longest footer that is searched for in a cut file.
const LONGEST: u64 = 1 << 30;

/// The footer of a file with these row groups and this metadata.
pub fn encode(schema: &SchemaDescPtr, groups: &[RowGroupMetaData], metadata: Vec<KeyValue>) -> Result<Vec<u8>> {
    let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
    let writer = Some(concat!("tcpmon ", env!("CARGO_PKG_VERSION")).to_owned());
    let file = FileMetaData::new(1, rows, writer, Some(metadata), schema.clone(), None);
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &ParquetMetaData::new(file, groups.to_vec())).finish()?;
    Ok(footer)
}

/// Where the last whole footer of a file ends. The writer puts a footer after a row group from time to time, so a file
/// that was cut contains one.
pub fn find_last(file: &File) -> io::Result<Option<u64>> {
    let mut end = file.metadata()?.len();
    while end > 0 {
        // Chunks overlap, so that a magic at their border is found.
        let begin = end.saturating_sub(CHUNK);
        let chunk = bytes(file, begin, end - begin + MAGIC.len() as u64 - 1)?;
        let magics = (0..chunk.len().saturating_sub(MAGIC.len() - 1)).rev();
        for at in magics.filter(|at| chunk[*at..].starts_with(MAGIC)) {
            let end = begin + (at + MAGIC.len()) as u64;
            if has_footer(file, end)? {
                return Ok(Some(end));
            }
        }
        end = begin;
    }
    Ok(None)
}

/// Whether a footer ends there.
fn has_footer(file: &File, end: u64) -> io::Result<bool> {
    let Some(begin) = end.checked_sub(LENGTH_AND_MAGIC) else { return Ok(false) };
    let length = bytes(file, begin, 4)?;
    let length = u64::from(u32::from_le_bytes(length.try_into().unwrap_or_default()));
    match begin.checked_sub(length) {
        Some(begin) if (1..LONGEST).contains(&length) => {
            Ok(ParquetMetaDataReader::decode_metadata(&bytes(file, begin, length)?).is_ok())
        }
        _ => Ok(false),
    }
}

fn bytes(mut file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}
