//! Files that are whole or not there: written beside, flushed, renamed, and the folder flushed. Owns modes, the atomic
//! writer and the lock; what stands in a file is its owner's business.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use zeroize::Zeroizing;

const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
const OTHERS: u32 = 0o077;
/// Nothing that we read is larger.
const READ_MAX: u64 = 1024 * 1024;

#[derive(Debug, Error)]
pub enum FileError {
    #[error("{path} cannot be {action}: {problem}")]
    Io {
        action: &'static str,
        path: PathBuf,
        problem: io::Error,
    },
    #[error("{path} may be read by others than its owner (mode {mode:04o}): chmod {wanted:04o} {path}")]
    Mode { path: PathBuf, mode: u32, wanted: u32 },
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    #[error("{0} is in use by another firewall-agent: only one may run with this state folder")]
    Locked(PathBuf),
    #[error("{path} is larger than {READ_MAX} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path} is not text")]
    NotText { path: PathBuf },
    #[error("{path} was not written, because what would stand in it cannot be read back: {problem}")]
    Unreadable { path: PathBuf, problem: String },
}

/// Held while the agent runs; another agent with the same folder does not start.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "the lock goes with the open file")] File);

/// Makes the folder for our eyes only, or finds it so.
pub(crate) fn private_dir(path: &Path) -> Result<(), FileError> {
    match DirBuilder::new().recursive(true).mode(PRIVATE_DIR).create(path) {
        Ok(()) => private_mode(path, PRIVATE_DIR),
        Err(problem) => Err(io_error("made", path, problem)),
    }
}

pub(crate) fn lock(path: &Path) -> Result<Lock, FileError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(PRIVATE_FILE)
        .open(path)
        .map_err(|problem| io_error("opened for writing", path, problem))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(FileError::Locked(path.to_owned())),
        Err(errno) => Err(io_error("locked", path, errno.into())),
    }
}

/// The text of a file that holds a secret; none if there is no such file.
pub(crate) fn read_private(path: &Path) -> Result<Option<Zeroizing<String>>, FileError> {
    // NONBLOCK: a pipe in its place must not hold us up.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(problem) => return Err(io_error("read", path, problem)),
    };
    let metadata = file.metadata().map_err(|problem| io_error("read", path, problem))?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    check_mode(path, metadata.mode(), PRIVATE_FILE)?;
    // Reserved at once: a buffer that grows leaves copies of the secret behind.
    let capacity = usize::try_from(metadata.len().min(READ_MAX)).unwrap_or_default() + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    file.take(READ_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|problem| io_error("read", path, problem))?;
    if bytes.len() as u64 > READ_MAX {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    match str::from_utf8(&bytes) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(_) => Err(FileError::NotText { path: path.to_owned() }),
    }
}

/// Replaces the file, or changes nothing. `read_back` reads the text as its later readers will: what it refuses is not
/// written.
pub(crate) fn write<E: std::fmt::Display>(
    path: &Path,
    text: &str,
    read_back: impl FnOnce(&str) -> Result<(), E>,
) -> Result<(), FileError> {
    read_back(text).map_err(|e| FileError::Unreadable {
        path: path.to_owned(),
        problem: e.to_string(),
    })?;
    let failed = |problem| io_error("written", path, problem);
    let dir = folder(path);
    let mut file = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(Permissions::from_mode(PRIVATE_FILE))
        .tempfile_in(dir)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    sync(dir)
}

/// Makes `path` a link to `target`, in place of whatever file or link is there. Says whether anything changed.
pub(crate) fn link(path: &Path, target: &Path) -> Result<bool, FileError> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(false);
    }
    let failed = |problem| io_error("linked", path, problem);
    let dir = folder(path);
    let temporary = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .make_in(dir, |path| symlink(target, path))
        .map_err(failed)?;
    temporary.persist(path).map_err(|e| failed(e.error))?;
    sync(dir)?;
    Ok(true)
}

pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => sync(folder(path)),
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(problem) => Err(io_error("removed", path, problem)),
    }
}

/// Removes what a write left behind that was killed half way.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            // What cannot be removed now is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
}

const TEMPORARY: &str = ".firewall-agent-";

fn private_mode(path: &Path, wanted: u32) -> Result<(), FileError> {
    let metadata = fs::metadata(path).map_err(|problem| io_error("read", path, problem))?;
    check_mode(path, metadata.mode(), wanted)
}

fn check_mode(path: &Path, mode: u32, wanted: u32) -> Result<(), FileError> {
    if mode & OTHERS == 0 {
        return Ok(());
    }
    Err(FileError::Mode {
        path: path.to_owned(),
        mode: mode & 0o7777,
        wanted,
    })
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A rename is on the disk only when its folder is.
fn sync(dir: &Path) -> Result<(), FileError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|problem| io_error("flushed to disk", dir, problem))
}

fn io_error(action: &'static str, path: &Path, problem: io::Error) -> FileError {
    FileError::Io {
        action,
        path: path.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: &str) -> Result<(), String> {
        Ok(())
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_file_is_private_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        for text in ["one", "two"] {
            write(&path, text, any).unwrap();
            assert_eq!(read_private(&path).unwrap().unwrap().as_str(), text);
            assert_eq!(mode(&path), 0o600);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_read_back_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pair.pem");
        write(&path, "good", any).unwrap();
        let refused = write(&path, "bad", |_| Err("no certificate"));
        assert!(matches!(refused, Err(FileError::Unreadable { .. })), "{refused:?}");
        assert_eq!(read_private(&path).unwrap().unwrap().as_str(), "good");
    }

    #[test]
    fn a_folder_that_takes_no_file_is_named_and_the_old_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("no-such-folder").join("file");
        let error = write(&path, "text", any).unwrap_err().to_string();
        assert!(error.contains("no-such-folder/file cannot be written"), "{error}");
    }

    #[test]
    fn a_file_that_others_may_read_is_refused_with_the_command_that_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        write(&path, "secret", any).unwrap();
        for bad in [0o640, 0o604, 0o620, 0o610] {
            fs::set_permissions(&path, Permissions::from_mode(bad)).unwrap();
            let error = read_private(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("chmod 0600 {}", path.display())), "{error}");
        }
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let error = private_dir(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("chmod 0700 {}", dir.path().display())),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_regular_file_is_refused_and_what_is_absent_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_private(&dir.path().join("absent")).unwrap().is_none());
        assert!(matches!(read_private(dir.path()), Err(FileError::NotAFile(_))));
    }

    #[test]
    fn a_link_replaces_a_file_or_another_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("current.pem");
        write(&path, "a file", any).unwrap();
        assert!(link(&path, Path::new("pairs/1.pem")).unwrap());
        assert!(!link(&path, Path::new("pairs/1.pem")).unwrap());
        assert!(link(&path, Path::new("pairs/2.pem")).unwrap());
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("pairs/2.pem"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_second_agent_does_not_get_the_lock_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = lock(&path).unwrap();
        assert!(matches!(lock(&path), Err(FileError::Locked(_))));
        drop(first);
        lock(&path).unwrap();
    }

    #[test]
    fn what_a_killed_write_left_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("kept"), "", any).unwrap();
        fs::write(dir.path().join(".firewall-agent-x1y2"), "half").unwrap();
        sweep(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
