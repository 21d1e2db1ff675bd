//! The protocol of the local socket. A client sends a request of fixed size, and gets one message in return: a header
//! and at most [`MAX_MESSAGE`] bytes. Integers are little-endian; a sample is in postcard's format.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::model::live::LiveSample;

/// Begins each request and each message.
const MAGIC: [u8; 4] = *b"tcpm";

/// Version of the samples: [`LiveSample`] and everything in it.
pub(super) const VERSION: u16 = 2;

/// Largest message, bytes: some 250,000 connections.
pub(super) const MAX_MESSAGE: usize = 64 << 20;

/// What a message contains: a sample, or why there is none.
const SAMPLE: u8 = 0;
const REFUSAL: u8 = 1;

/// Writes a request for what has changed since a pass.
pub(super) async fn write_request(to: &mut (impl AsyncWrite + Unpin), since: u64) -> io::Result<()> {
    let mut request = [0; 14];
    request[..4].copy_from_slice(&MAGIC);
    request[4..6].copy_from_slice(&VERSION.to_le_bytes());
    request[6..].copy_from_slice(&since.to_le_bytes());
    to.write_all(&request).await
}

/// Reads a request; `None` if the other side has closed. The inner error says what is wrong with the request.
pub(crate) async fn read_request(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Result<u64, String>>> {
    let mut head = [0; 6];
    if let Err(error) = from.read_exact(&mut head).await {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    if let Err(problem) = check_head(&head, "the client") {
        return Ok(Some(Err(problem)));
    }
    Ok(Some(Ok(from.read_u64_le().await?)))
}

/// Checks the magic and the version of the other side, which errors call `whose`.
fn check_head(head: &[u8; 6], whose: &str) -> Result<(), String> {
    let version = u16::from_le_bytes([head[4], head[5]]);
    if head[..4] != MAGIC {
        return Err(format!("{whose} is not tcpmon"));
    }
    if version != VERSION {
        return Err(format!(
            "{whose} has version {version} of live samples, and this side {VERSION}: use the same tcpmon for both"
        ));
    }
    Ok(())
}

/// A message with this sample, or with the reason why there is none.
pub(super) fn message(sample: Result<&LiveSample, &str>) -> Vec<u8> {
    let (kind, body) = match sample {
        Ok(sample) => match postcard::to_extend(sample, head(SAMPLE)) {
            Ok(message) if message.len() <= MAX_MESSAGE => return with_length(message),
            _ => (REFUSAL, format!("there are too many connections for one answer of {} MiB", MAX_MESSAGE >> 20)),
        },
        Err(reason) => (REFUSAL, reason.to_owned()),
    };
    let mut message = head(kind);
    message.extend_from_slice(body.as_bytes());
    with_length(message)
}

/// Bytes before the body.
const HEAD: usize = 11;

fn head(kind: u8) -> Vec<u8> {
    let mut message = MAGIC.to_vec();
    message.extend_from_slice(&VERSION.to_le_bytes());
    message.push(kind);
    message.resize(HEAD, 0);
    message
}

fn with_length(mut message: Vec<u8>) -> Vec<u8> {
    let length = (message.len() - HEAD) as u32;
    message[HEAD - 4..HEAD].copy_from_slice(&length.to_le_bytes());
    message
}

/// Reads a message. The inner error says what is wrong with it, or why there is no sample.
pub(crate) async fn read_message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Result<LiveSample, String>> {
    let mut head = [0; 6];
    from.read_exact(&mut head).await?;
    if let Err(problem) = check_head(&head, "the daemon") {
        return Ok(Err(problem));
    }
    let (kind, length) = (from.read_u8().await?, from.read_u32_le().await? as usize);
    if length > MAX_MESSAGE {
        return Ok(Err(format!("the daemon announces {length} bytes, more than it may send")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(match kind {
        SAMPLE => postcard::from_bytes(&body).map_err(|error| format!("the daemon's sample cannot be read: {error}")),
        _ => Err(String::from_utf8_lossy(&body).into_owned()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::top::fixture::sample;

    fn read(bytes: &[u8]) -> io::Result<Result<LiveSample, String>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(read_message(&mut &bytes[..]))
    }

    #[test]
    fn a_sample_and_a_refusal_arrive_as_they_were_sent() {
        let sample = sample(3);
        assert_eq!(read(&message(Ok(&sample))).expect("whole"), Ok(sample));
        assert_eq!(read(&message(Err("no"))).expect("whole"), Err("no".to_owned()));
    }

    #[test]
    fn another_version_is_named() {
        let mut other = message(Ok(&sample(1)));
        other[4] = 9;
        let problem = read(&other).expect("whole").expect_err("another version");
        assert_eq!(problem, "the daemon has version 9 of live samples, and this side 2: use the same tcpmon for both");
        assert_eq!(read(b"HTTP/1.1 400 Bad Request").expect("whole"), Err("the daemon is not tcpmon".to_owned()));
    }

    #[tokio::test]
    async fn a_request_is_read_or_refused_by_its_first_bytes() {
        let mut request = Vec::new();
        write_request(&mut request, u64::MAX - 1).await.expect("written");
        assert_eq!(read_request(&mut &request[..]).await.expect("whole"), Some(Ok(u64::MAX - 1)));
        assert_eq!(read_request(&mut &b""[..]).await.expect("closed"), None);
        let refused = read_request(&mut &b"GET / HTTP/1.1"[..]).await.expect("whole");
        assert_eq!(refused, Some(Err("the client is not tcpmon".to_owned())));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), valid: bool) {
            let bytes = if valid { [b"tcpm\x01\0\0\x40\0\0\0".as_slice(), &bytes].concat() } else { bytes };
            let _ = read(&bytes);
        }
    }
}
