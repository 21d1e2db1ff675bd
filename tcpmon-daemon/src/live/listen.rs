//! Creates the local socket.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener as Listener, UnixStream},
    },
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// Its owner and its group may connect.
const MODE: u32 = 0o660;

/// The local socket cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("live_socket: {}: {problem}", path.display())]
pub struct LiveSocketError {
    path: PathBuf,
    problem: String,
}

/// Listens on this path, for the owner and the group of this process. A socket that an ended daemon has left there is
/// replaced.
///
/// # Errors
/// If another process listens there, or the system refuses.
pub fn listen(path: &Path) -> Result<UnixListener, LiveSocketError> {
    let error = |problem: String| LiveSocketError { path: path.to_owned(), problem };
    let failed = |problem: io::Error| error(format!("{problem}: choose a path in a directory of tcpmon's own"));
    match UnixStream::connect(path) {
        Ok(_) => return Err(error("another process listens there: choose another path".into())),
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
            let kind = fs::symlink_metadata(path).map_err(failed)?.file_type();
            if !kind.is_socket() {
                return Err(error("the file is not a socket: choose another path".into()));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = Listener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_of_an_ended_daemon_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tcpmon.sock");
        drop(listen(&path).expect("it is free"));
        let second = listen(&path).expect("nobody listens any more");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, MODE);
        let third = listen(&path).expect_err("somebody listens").to_string();
        assert!(third.contains("another process listens there"), "{third}");
        drop(second);

        let file = directory.path().join("file");
        fs::write(&file, "precious").expect("written");
        listen(&file).expect_err("it is a file");
        assert_eq!(fs::read(&file).expect("it is there"), b"precious");
        let nowhere = listen(Path::new("/nowhere/tcpmon.sock")).expect_err("no directory").to_string();
        assert!(nowhere.starts_with("live_socket: /nowhere/tcpmon.sock: No such file"), "{nowhere}");
    }
}
