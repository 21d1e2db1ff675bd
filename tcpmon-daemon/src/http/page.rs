//! Response bodies ("pages"): made once for all clients that get them, stored in small blocks, and emptied when all
//! pages together take too much memory.

use std::{
    collections::VecDeque,
    io::{self, BufWriter, Write},
    mem,
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use flate2::{Compression, write::GzEncoder};
use hyper::{
    StatusCode,
    body::{Body, Bytes, Frame, SizeHint},
    header::{self, HeaderValue},
};

/// Size of a block. A connection holds two or three of them.
const BLOCK_BYTES: usize = 16 << 10;

/// Compressed blocks are stored together in allocations of this size. They are large enough that the allocator returns
/// them to the system.
const SLAB_BYTES: usize = 256 << 10;

/// A page above this size is stored compressed: that takes a tenth of the memory, and 1 ms of CPU per megabyte and
/// client.
const MAX_UNCOMPRESSED_BYTES: usize = 1 << 20;

/// Limit on the memory of all pages together. The latest page is kept whatever its size: 8 MB at 10,000 groups.
const MAX_TOTAL_BYTES: usize = 8 << 20;

/// The response to a request.
pub(super) type Response = hyper::Response<PageBody>;

/// A response with a short text as its body.
pub(super) fn text_response(status: StatusCode, content_type: &'static str, text: &str) -> Response {
    let last = text.as_bytes().to_vec();
    let page = PageWriter { length: last.len(), last, ..PageWriter::default() }.page(content_type);
    let mut response = Arc::new(page).response();
    *response.status_mut() = status;
    response
}

/// A finished page. It does not change any more, unless it is emptied.
#[derive(Debug)]
pub(super) struct StoredPage {
    content_type: &'static str,
    gzip: bool,
    length: usize,
    stored_bytes: usize,
    /// Empty once the page has been emptied to free memory.
    blocks: Mutex<Vec<Block>>,
}

#[derive(Clone, Debug)]
enum Block {
    Uncompressed(Bytes),
    Compressed(Bytes),
}

impl Block {
    fn len(&self) -> usize {
        match self {
            Self::Uncompressed(bytes) => bytes.len(),
            Self::Compressed(bytes) => bytes.len(),
        }
    }

    fn bytes(self) -> io::Result<Bytes> {
        match self {
            Self::Uncompressed(bytes) => Ok(bytes),
            Self::Compressed(bytes) => {
                lz4_flex::decompress_size_prepended(&bytes).map(Bytes::from).map_err(io::Error::other)
            }
        }
    }
}

impl StoredPage {
    /// A response with this page as its body.
    pub(super) fn response(self: Arc<Self>) -> Response {
        let (content_type, gzip) = (HeaderValue::from_static(self.content_type), self.gzip);
        let mut response = Response::new(PageBody { left: self.length, page: self, next: 0 });
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        if gzip {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects what is written into the blocks of a page.
#[derive(Debug, Default)]
pub(super) struct PageWriter {
    /// What is written is compressed already.
    gzip: bool,
    blocks: Vec<Block>,
    /// Blocks of a large page that are not in `blocks` yet.
    slab: Vec<u8>,
    in_slab: Vec<Range<usize>>,
    last: Vec<u8>,
    length: usize,
}

impl PageWriter {
    /// Finishes the page.
    pub(super) fn page(mut self, content_type: &'static str) -> StoredPage {
        self.end_block();
        self.end_slab();
        self.blocks.shrink_to_fit();
        let stored_bytes = self.blocks.iter().map(Block::len).sum();
        StoredPage { content_type, gzip: self.gzip, length: self.length, stored_bytes, blocks: Mutex::new(self.blocks) }
    }

    fn end_block(&mut self) {
        if self.length <= MAX_UNCOMPRESSED_BYTES {
            self.blocks.push(Block::Uncompressed(Bytes::copy_from_slice(&self.last)));
        } else if self.gzip {
            let last = mem::take(&mut self.last);
            self.add_to_slab(&last);
            self.last = last;
        } else {
            if let Some(Block::Uncompressed(_)) = self.blocks.first() {
                for block in mem::take(&mut self.blocks) {
                    if let Block::Uncompressed(bytes) = block {
                        self.compress(&bytes);
                    }
                }
            }
            let last = mem::take(&mut self.last);
            self.compress(&last);
            self.last = last;
        }
        self.last.clear();
    }

    fn compress(&mut self, bytes: &[u8]) {
        self.add_to_slab(&lz4_flex::compress_prepend_size(bytes));
    }

    fn add_to_slab(&mut self, block: &[u8]) {
        if self.slab.len() + block.len() > SLAB_BYTES {
            self.end_slab();
        }
        self.slab.reserve_exact(SLAB_BYTES - self.slab.len());
        let begin = self.slab.len();
        self.slab.extend_from_slice(block);
        self.in_slab.push(begin..self.slab.len());
    }

    fn end_slab(&mut self) {
        let slab = Bytes::from(mem::take(&mut self.slab));
        let block = if self.gzip { Block::Uncompressed } else { Block::Compressed };
        self.blocks.extend(self.in_slab.drain(..).map(|range| block(slab.slice(range))));
    }
}

impl Write for PageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK_BYTES - self.last.len());
        self.last.extend_from_slice(&bytes[..taken]);
        self.length += taken;
        if self.last.len() == BLOCK_BYTES {
            self.end_block();
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compresses what is written while it is written, and collects it into the blocks of a page: the page itself is never
/// in memory as a whole.
pub(super) struct GzipPageWriter(BufWriter<GzEncoder<PageWriter>>);

/// A page of 94 MB becomes 3.6 MB in 63 ms. Level 1 saves 8 ms of that and sends half as much again; level 6 takes four
/// times as long for 0.5 MB less.
const GZIP_LEVEL: u32 = 2;

impl Default for GzipPageWriter {
    fn default() -> Self {
        let page = PageWriter { gzip: true, ..PageWriter::default() };
        // Pages are written in pieces of a few bytes, and the compressor takes its time for each call.
        Self(BufWriter::with_capacity(BLOCK_BYTES, GzEncoder::new(page, Compression::new(GZIP_LEVEL))))
    }
}

impl GzipPageWriter {
    /// Writes what is left.
    ///
    /// # Errors
    /// None: a page takes all.
    pub(super) fn finish(self) -> io::Result<PageWriter> {
        self.0.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
    }
}

impl Write for GzipPageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A response body in transit to one client, block by block.
#[derive(Debug)]
pub(super) struct PageBody {
    page: Arc<StoredPage>,
    next: usize,
    /// Bytes still to be sent.
    left: usize,
}

/// The client is cut off before the promised length, because a partial page must not look complete.
#[derive(Debug, thiserror::Error)]
#[error("the page was evicted before its client had received it, because newer pages needed the memory")]
struct PageEvicted;

impl Body for PageBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let block = self.page.blocks().get(self.next).cloned();
        let bytes = block.ok_or_else(|| io::Error::other(PageEvicted)).and_then(Block::bytes);
        if let Ok(bytes) = &bytes {
            self.next += 1;
            self.left -= bytes.len();
        }
        Poll::Ready(Some(bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// All pages that exist, oldest first. A slow client keeps its page in memory while later samples add pages of their
/// own.
#[derive(Debug, Default)]
pub(super) struct StoredPages(Mutex<VecDeque<Weak<StoredPage>>>);

impl StoredPages {
    /// Adds a page, and empties the oldest ones while all pages together take too much memory.
    pub(super) fn add(&self, page: StoredPage) -> Arc<StoredPage> {
        let page = Arc::new(page);
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| page.strong_count() > 0);
        let mut stored_bytes = page.stored_bytes;
        for older in pages.iter().rev().filter_map(Weak::upgrade) {
            stored_bytes += older.stored_bytes;
            if stored_bytes > MAX_TOTAL_BYTES {
                older.blocks().clear();
            }
        }
        pages.push_back(Arc::downgrade(&page));
        page
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io::Read as _, iter};

    use super::*;

    fn page(bytes: &[u8]) -> StoredPage {
        let mut writer = PageWriter::default();
        writer.write_all(bytes).expect("a page takes all");
        writer.page("text/plain")
    }

    async fn read_body(page: &Arc<StoredPage>) -> io::Result<Vec<u8>> {
        let mut sent = PageBody { left: page.length, page: Arc::clone(page), next: 0 };
        let mut all = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut sent).poll_frame(context)).await {
            all.extend_from_slice(&frame?.into_data().expect("pages are data"));
            assert_eq!(sent.size_hint().exact(), Some((page.length - all.len()) as u64));
        }
        Ok(all)
    }

    #[tokio::test]
    async fn pages_of_any_size_contain_what_was_written() {
        for length in [
            0,
            1,
            BLOCK_BYTES - 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
            MAX_UNCOMPRESSED_BYTES,
            3 * MAX_UNCOMPRESSED_BYTES + 5,
        ] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
            let page = Arc::new(page(&bytes));
            assert!(read_body(&page).await.expect("it is kept") == bytes, "{length}");
            let stored_bytes = page.stored_bytes;
            assert!(stored_bytes <= MAX_UNCOMPRESSED_BYTES + 2 * BLOCK_BYTES, "{length} takes {stored_bytes}");
        }
    }

    #[tokio::test]
    async fn compressed_pages_of_any_size_are_gzip_of_what_was_written() {
        // Bytes that gzip makes hardly smaller: the large pages fill slabs.
        let mut state = 1_u32;
        let noise = iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let noise: Vec<u8> = noise.take(3 * MAX_UNCOMPRESSED_BYTES).collect();
        for length in [0, 1, BLOCK_BYTES, MAX_UNCOMPRESSED_BYTES, noise.len()] {
            let mut gzip = GzipPageWriter::default();
            gzip.write_all(&noise[..length]).expect("a page takes all");
            let page = Arc::new(gzip.finish().expect("a page takes all").page("text/plain"));
            let sent = read_body(&page).await.expect("it is kept");
            let mut read = Vec::new();
            flate2::read::GzDecoder::new(&*sent).read_to_end(&mut read).expect("gzip");
            assert!(read == noise[..length], "{length}");
            assert!(page.stored_bytes == sent.len(), "{length} takes {}", page.stored_bytes);
        }
    }

    #[tokio::test]
    async fn the_oldest_pages_are_evicted_at_the_limit_and_a_page_that_nobody_holds_does_not_count() {
        let pages = StoredPages::default();
        let mib = || page(&vec![7; MAX_UNCOMPRESSED_BYTES]);
        let first = pages.add(mib());
        for _ in 0..100 {
            drop(pages.add(mib()));
        }
        assert!(read_body(&first).await.is_ok());
        let others: Vec<_> = (0..MAX_TOTAL_BYTES / MAX_UNCOMPRESSED_BYTES).map(|_| pages.add(mib())).collect();
        let error = read_body(&first).await.expect_err("it is evicted");
        assert!(error.to_string().contains("evicted"), "{error}");
        for other in &others {
            assert!(read_body(other).await.is_ok());
        }
    }
}
