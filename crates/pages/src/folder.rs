//! The folder of a published bundle. Each file is written under a temporary name and then renamed. So a reader finds either the old or
//! the new content, wherever the writer dies.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use seckill_domain::ids::SaleId;

/// The prefix of temporary files. A writer that dies leaves at most one.
const TEMPORARY: &str = ".seckill-tmp-";
/// The folders of the bundle; each sale has one more.
const FOLDERS: [&str; 5] = ["", "assets", "pictures", "sales", "orders"];
const SALES: &str = "sales";
const PAGE: &str = "index.html";

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{} is being written by another publish", .0.display())]
    Locked(PathBuf),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

pub(super) struct Folder {
    root: PathBuf,
    /// The kernel unlocks it when the process ends, however it ends.
    _lock: File,
    /// Folders with entries that may not be on the disk yet.
    changed: BTreeSet<PathBuf>,
    temporary_files: u64,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |error| FolderError::Io { path, error }
}

impl Folder {
    /// Opens the folder, creates it if necessary, and removes the temporary files of a dead writer.
    pub(super) fn open(root: &Path) -> Result<Self, FolderError> {
        fs::create_dir_all(root).map_err(at(root))?;
        let lock = File::open(root).map_err(at(root))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::Locked(root.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(root)(error)),
        }
        let folder = Self { root: root.to_owned(), _lock: lock, changed: BTreeSet::new(), temporary_files: 0 };
        for name in FOLDERS {
            folder.clear_temporary_files(&root.join(name))?;
        }
        for sale in folder.sales()? {
            folder.clear_temporary_files(&root.join(SALES).join(sale.to_string()))?;
        }
        Ok(folder)
    }

    fn clear_temporary_files(&self, folder: &Path) -> Result<(), FolderError> {
        for path in entries(folder)? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY)) {
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    /// The content of a file; `None` if it does not exist.
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.root.join(path);
        found(fs::read(&path)).map_err(at(&path))
    }

    pub(super) fn length(&self, path: &str) -> Result<Option<u64>, FolderError> {
        let path = self.root.join(path);
        Ok(found(fs::metadata(&path)).map_err(at(&path))?.map(|file| file.len()))
    }

    /// Writes a file, unless it has this content. Returns whether it was written.
    pub(super) fn put(&mut self, path: &str, content: &[u8]) -> Result<bool, FolderError> {
        let is_as_long = self.length(path)? == Some(content.len() as u64);
        if is_as_long && self.read(path)?.is_some_and(|found| found == content) {
            return Ok(false);
        }
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root).to_owned();
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        self.temporary_files += 1;
        let temporary = folder.join(format!("{TEMPORARY}{}-{}", std::process::id(), self.temporary_files));
        let written = write(&temporary, content).and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = written {
            // The disk may be full: a partial file must not stay.
            let _ = fs::remove_file(&temporary);
            return Err(at(&path)(error));
        }
        if folder != self.root {
            // The folder itself may be new.
            self.changed.extend(folder.parent().map(Path::to_owned));
        }
        self.changed.insert(folder);
        Ok(true)
    }

    /// Makes the written files survive a loss of power, before other files name them.
    pub(super) fn sync(&mut self) -> Result<(), FolderError> {
        while let Some(folder) = self.changed.pop_last() {
            File::open(&folder).and_then(|open| open.sync_all()).map_err(at(&folder))?;
        }
        Ok(())
    }

    pub(super) fn sales(&self) -> Result<Vec<SaleId>, FolderError> {
        let names = entries(&self.root.join(SALES))?.into_iter();
        let ids = names.filter_map(|path| SaleId::parse(&path.file_name()?.to_string_lossy()).ok());
        Ok(ids.collect())
    }

    /// Removes the page of a sale. Files of others in its folder stay. Returns whether there was a page.
    pub(super) fn remove_sale(&mut self, sale: SaleId) -> Result<bool, FolderError> {
        let folder = self.root.join(SALES).join(sale.to_string());
        let page = folder.join(PAGE);
        let removed = found(fs::remove_file(&page)).map_err(at(&page))?;
        match fs::remove_dir(&folder) {
            Err(error) if !matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {
                return Err(at(&folder)(error));
            }
            _ => {}
        }
        self.changed.extend(folder.parent().map(Path::to_owned));
        Ok(removed.is_some())
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// The entries of a folder; none if the folder does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let Some(listed) = found(fs::read_dir(folder)).map_err(at(folder))? else { return Ok(Vec::new()) };
    listed.map(|entry| Ok(entry.map_err(at(folder))?.path())).collect()
}

/// `None` in place of the error "no such file".
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_do_not_write_the_same_folder() {
        let place = std::env::temp_dir().join(format!("seckill-folder-{}", uuid::Uuid::new_v4().simple()));
        let first = Folder::open(&place).unwrap();
        assert!(matches!(Folder::open(&place), Err(FolderError::Locked(_))));
        drop(first);
        assert!(Folder::open(&place).is_ok());
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_removed_page_takes_its_folder_along_unless_others_use_it() {
        let place = std::env::temp_dir().join(format!("seckill-folder-{}", uuid::Uuid::new_v4().simple()));
        let mut folder = Folder::open(&place).unwrap();
        for name in ["sales/7/index.html", "sales/8/index.html", "sales/8/theirs"] {
            folder.put(name, b"x").unwrap();
        }
        let [seven, eight] = [7, 8].map(SaleId::from_db);
        assert!(folder.remove_sale(seven).unwrap() && folder.remove_sale(eight).unwrap());
        assert!(!place.join("sales/7").exists() && place.join("sales/8/theirs").exists());
        assert!(!folder.remove_sale(eight).unwrap());
        fs::remove_dir_all(&place).unwrap();
    }
}
