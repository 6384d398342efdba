//! Blocks in the origin private file system: one file per hash, shared by all tabs of the origin.
//!
//! A block being downloaded is `HASH.part`; it becomes `HASH` when its bytes are complete and have the hash. What an
//! interrupted download left is where the next one goes on. One tab at a time works on a hash; the others wait for it, and
//! find the file when their turn comes. A browser without such a store, or one that is full, costs a download next time.

use std::time::Duration;

use js_sys::Object;
use wasm_bindgen::prelude::*;

use super::js;
use super::lock::Lock;
use crate::download::hash_matches;

/// The folder in the origin's storage.
const FOLDER: &str = "moex-blocks";
/// How long another tab may take over a block before this one goes without the store for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The store, open.
pub(super) struct Store {
    folder: js::Directory,
}

/// One block's place in the store, this tab's alone until dropped.
pub(super) struct Place {
    folder: js::Directory,
    name: String,
    part: Option<Part>,
    _lock: Lock,
}

/// An open `.part` file and how much of it is good.
struct Part {
    file: js::File,
    handle: js::SyncHandle,
    len: usize,
}

impl Store {
    /// `None` where the browser has no such storage: insecure contexts and some private windows.
    pub(super) async fn open() -> Option<Self> {
        let root: js::Directory = js::storage_root().await.ok()?.unchecked_into();
        let folder = root.directory(FOLDER, &create()).await.ok()?.unchecked_into();
        Some(Self { folder })
    }

    /// The place of the block with this hash. `None` if another tab does not give it up in time.
    pub(super) async fn place(&self, name: &str) -> Option<Place> {
        let lock = Lock::acquire(&format!("{FOLDER}/{name}"), PATIENCE).await?;
        Some(Place {
            folder: self.folder.clone().unchecked_into(),
            name: name.to_owned(),
            part: None,
            _lock: lock,
        })
    }
}

impl Place {
    /// The block, if it is here whole. A file that does not have its hash is removed.
    pub(super) async fn read(&self) -> Option<Vec<u8>> {
        let file: js::File = self.folder.file(&self.name, &Object::new()).await.ok()?.unchecked_into();
        let handle: js::SyncHandle = file.open().await.ok()?.unchecked_into();
        let bytes = read_all(&handle, usize::MAX);
        handle.close_handle();
        match bytes {
            Ok(bytes) if hash_matches(&bytes, &self.name) => Some(bytes),
            _ => {
                drop(self.folder.remove(&self.name).await);
                None
            }
        }
    }

    /// Opens the `.part` file and gives what it holds; empty if it cannot be used, and then nothing is kept.
    pub(super) async fn open_part(&mut self, max_bytes: usize) -> Vec<u8> {
        match self.try_open_part(max_bytes).await {
            Ok((part, bytes)) => {
                self.part = Some(part);
                bytes
            }
            Err(_) => Vec::new(),
        }
    }

    /// Writes bytes at `offset`, behind what is there; what was behind `offset` is gone. After an error (no space, most
    /// likely) the file is given up: the download goes on without it.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let Some(part) = &mut self.part else { return };
        if part.write(offset, bytes).is_err() {
            self.give_up();
        }
    }

    /// The `.part` file is complete: under its final name it counts from now on.
    pub(super) async fn finish(&mut self) {
        let Some(part) = self.part.take() else { return };
        let flushed = part.handle.flush();
        part.handle.close_handle();
        if flushed.is_ok() {
            // Without the new name it is still a `.part` file with all its bytes, and is recognised as such.
            drop(part.file.rename(&self.name).await);
        }
    }

    async fn try_open_part(&self, max_bytes: usize) -> Result<(Part, Vec<u8>), JsValue> {
        let file: js::File = self.folder.file(&self.part_name(), &create()).await?.unchecked_into();
        let handle: js::SyncHandle = file.open().await?.unchecked_into();
        match read_all(&handle, max_bytes) {
            Ok(bytes) => Ok((Part { file, handle, len: bytes.len() }, bytes)),
            Err(error) => {
                handle.close_handle();
                Err(error)
            }
        }
    }

    fn part_name(&self) -> String {
        format!("{}.part", self.name)
    }

    /// Keeps nothing of this block, and frees the space it took.
    fn give_up(&mut self) {
        if let Some(part) = self.part.take() {
            drop(part.handle.truncate(0.0));
            part.handle.close_handle();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            // Cut off: what was written stays for the next time.
            drop(part.handle.flush());
            part.handle.close_handle();
        }
    }
}

impl Part {
    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), JsValue> {
        if offset < self.len {
            self.handle.truncate(offset as f64)?;
        }
        let mut written = 0;
        while written < bytes.len() {
            let options = js::object([("at", ((offset + written) as f64).into())]);
            // A write may be short without being an error; one that writes nothing is.
            match self.handle.write_at(&bytes[written..], &options)? as usize {
                0 => return Err("nothing was written".into()),
                n => written += n,
            }
        }
        self.len = offset + written;
        Ok(())
    }
}

/// The whole file; an error if it is longer than `max_bytes` or gives less than its size.
fn read_all(handle: &js::SyncHandle, max_bytes: usize) -> Result<Vec<u8>, JsValue> {
    let size = handle.size()? as usize;
    if size > max_bytes {
        handle.truncate(0.0)?;
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; size];
    let options = js::object([("at", 0.0.into())]);
    let read = handle.read_at(&mut bytes, &options)? as usize;
    bytes.truncate(read);
    Ok(bytes)
}

fn create() -> Object {
    js::object([("create", true.into())])
}
