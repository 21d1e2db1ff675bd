//! A scraper's connection: kept open, one question after the other, as fast as the answers come.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    line: String,
    body: Vec<u8>,
}

impl Client {
    /// Connects, from the calling thread's network namespace. No answer takes longer than `deadline`.
    pub(crate) fn connect(address: SocketAddr, deadline: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, deadline)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(deadline))?;
        stream.set_write_timeout(Some(deadline))?;
        Ok(Self { stream: BufReader::new(stream), address, line: String::new(), body: Vec::new() })
    }

    /// The text at `path`; an answer other than 200 is an error.
    pub fn get(&mut self, path: &str) -> io::Result<&str> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = self.header()?.to_owned();
        let mut length = None;
        loop {
            match self.header()?.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().ok()
                }
                Some(_) => {}
                None => break,
            }
        }
        let length = length.ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("{path}: no length")))?;
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        let text = std::str::from_utf8(&self.body).map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        if status.split(' ').nth(1) == Some("200") { Ok(text) } else { Err(Error::other(format!("{status}: {text}"))) }
    }

    /// The next line of the head, empty at its end.
    fn header(&mut self) -> io::Result<&str> {
        self.line.clear();
        match self.stream.read_line(&mut self.line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(self.line.trim_end()),
        }
    }
}
