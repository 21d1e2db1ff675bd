//! Reads iterators.

use std::io::{self, ErrorKind, Read};

use zerocopy::FromBytes;

/// Reads everything that an iterator writes. The kernel aborts a read (EAGAIN) after a million objects for which the
/// program has written nothing; the next read continues from there.
pub(super) fn read(mut iterator: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        match iterator.read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => return result.map(|_| bytes),
        }
    }
}

/// What it has written, without a part of a record at its end.
pub(super) fn records<T: FromBytes>(written: &[u8]) -> Vec<T> {
    written.chunks_exact(size_of::<T>()).filter_map(|record| T::read_from_bytes(record).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of the reads of an iterator, in reverse order.
    struct Reads(Vec<io::Result<u8>>);

    impl Read for Reads {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(next) = self.0.pop() else { return Ok(0) };
            buffer[0] = next?;
            Ok(1)
        }
    }

    #[test]
    fn a_read_goes_on_after_a_million_objects_without_output() {
        let again = || Err(ErrorKind::WouldBlock.into());
        assert_eq!(read(Reads(vec![Ok(3), again(), again(), Ok(2), Ok(1), again()])).expect("it ends"), [1, 2, 3]);
        let failed = read(Reads(vec![Err(ErrorKind::OutOfMemory.into()), Ok(1)]));
        assert_eq!(failed.expect_err("no memory").kind(), ErrorKind::OutOfMemory);
    }
}
