//! The data directory belongs to one process at a time and says which format it has.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::machine::OpenError;

const FILE: &str = "tally.lock";
const FORMAT: &str = "tally-data-format 1";

/// Held for as long as the directory is in use; the system releases it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

/// What the lock is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve from it: creates what is missing.
    Serve,
    /// To look at it: changes nothing.
    Inspect,
}

impl DirLock {
    pub(crate) fn take(dir: &Path, purpose: Purpose) -> Result<DirLock, OpenError> {
        let serving = purpose == Purpose::Serve;
        if serving {
            fs::create_dir_all(dir).map_err(|error| named(dir, &error))?;
        }
        let path = dir.join(FILE);
        let mut file = OpenOptions::new().read(true).write(serving).create(serving).truncate(false).open(&path);
        if let Err(error) = &file
            && error.kind() == io::ErrorKind::NotFound
        {
            let what = "this is not a data directory of Tally: it has no tally.lock".to_owned();
            return Err(OpenError::Format { dir: dir.display().to_string(), what });
        }
        let file = file.as_mut().map_err(|error| named(&path, error))?;
        let mut text = String::new();
        let operation =
            if serving { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        let locked = flock(&*file, operation);
        file.read_to_string(&mut text).map_err(|error| named(&path, &error))?;
        if locked.is_err() {
            let pid = text.lines().nth(1).unwrap_or_default();
            let by = if pid.is_empty() { String::new() } else { format!(" ({pid})") };
            return Err(OpenError::InUse { dir: dir.display().to_string(), by });
        }
        let first = text.lines().next().unwrap_or_default();
        if !first.is_empty() && first != FORMAT {
            let what = format!("its format is {first:?}; this version of Tally reads {FORMAT:?}");
            return Err(OpenError::Format { dir: dir.display().to_string(), what });
        }
        if serving {
            write_owner(file).map_err(|error| named(&path, &error))?;
        }
        let file = file.try_clone().map_err(|error| named(&path, &error))?;
        Ok(DirLock { _file: file })
    }
}

fn write_owner(file: &mut File) -> io::Result<()> {
    file.rewind()?;
    let text = format!("{FORMAT}\nprocess {}\n", std::process::id());
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

fn named(path: &Path, error: &io::Error) -> OpenError {
    OpenError::Io(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
