// Blocks in the origin private file system: one file a hash, shared by all tabs of the origin.
//
// A block being downloaded is HASH.part; it becomes HASH when the bundle has checked it. What an interrupted download left is
// where the next one goes on. One tab at a time works on a hash; the others wait for it, and find the file when their turn
// comes. A file's modification time is when it was last used: what was not used for longest goes first when room is needed.
// Removing a block costs a download and nothing else, so pruning may be interrupted anywhere.

const FOLDER = "moex-blocks";
/** How long another tab may take over a block before this one goes without the store for it. */
const LOCK_PATIENCE_MILLIS = 30_000;
/** The most that blocks may take, and the most they may take of what the browser lets this origin store. */
const MAX_STORED_BYTES = 32 * 2 ** 30;
const MAX_STORED_SHARE = 0.5;

/** The store of a tab; null where the browser has none: insecure contexts and some private windows. */
export async function openStore(maxBytes = MAX_STORED_BYTES) {
  const openedAt = Date.now();
  const folder = await openFolder();
  if (!folder) return null;
  try {
    const { quota } = (await navigator.storage.estimate?.()) ?? {};
    const bound = Math.min(maxBytes, quota ? quota * MAX_STORED_SHARE : maxBytes);
    const stored = (await list(folder)).reduce((sum, { size }) => sum + size, 0);
    const store = new Store(folder, bound - stored, openedAt);
    // There may be more than a lower bound allows.
    await store.reserve(0);
    return store;
  } catch {
    return null;
  }
}

/** A thread's part of its tab's store, as `Store.divide` gives it; null as above. */
export async function openShare({ room, openedAt }) {
  const folder = await openFolder();
  return folder && new Store(folder, room, openedAt);
}

/** Resolves to null where there is none. */
async function openFolder() {
  try {
    if (!navigator.locks) return null;
    return await (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
  } catch {
    return null;
  }
}

async function list(folder) {
  const files = [];
  for await (const [name, handle] of folder.entries()) {
    const file = await handle.getFile().catch(() => null);
    if (file) files.push({ name, size: file.size, usedAt: file.lastModified });
  }
  return files;
}

/**
 * Its bound is kept by a room of its own: the bytes that it may still store, of what the tab found free, and of what itself
 * removed. So the stores of a tab's threads keep one bound without asking each other.
 */
class Store {
  #folder;
  #room;
  #openedAt;
  /** What was not used since the tab began, the oldest last; null until room is needed. */
  #unused = null;
  /** Settles when the reservations so far have. */
  #reserved = Promise.resolve();

  constructor(folder, room, openedAt) {
    this.#folder = folder;
    this.#room = room;
    this.#openedAt = openedAt;
  }

  /** What each of so many stores, this one among them, may use of this one's room. */
  divide(sharers) {
    this.#room = Math.floor(this.#room / sharers);
    return { room: this.#room, openedAt: this.#openedAt };
  }

  /** Takes back what `divide` gave to a store that nothing was stored in. */
  takeBack({ room }) {
    this.#room += room;
  }

  /** The place of the block with this hash; null if another tab does not give it up in time. */
  async place(name) {
    const release = await acquire(name, { signal: AbortSignal.timeout(LOCK_PATIENCE_MILLIS) });
    return release && new Place(this, this.#folder, name, release);
  }

  /** Whether so many bytes may be stored; removes what was used least recently for them, and nothing used since the tab began. */
  reserve(bytes) {
    this.#reserved = this.#reserved.then(() => this.#makeRoom(bytes)).catch(() => false);
    return this.#reserved;
  }

  async #makeRoom(bytes) {
    while (this.#room < bytes) {
      this.#unused ??= (await list(this.#folder)).sort((a, b) => b.usedAt - a.usedAt);
      const oldest = this.#unused.pop();
      if (!oldest) return false;
      this.#room += await this.#remove(oldest.name);
    }
    this.#room -= bytes;
    return true;
  }

  /** Removes a file that no tab works on and none used since this one began; resolves to the bytes that are free now. */
  async #remove(name) {
    const release = await acquire(name.replace(/\.part$/, ""), { ifAvailable: true });
    if (!release) return 0;
    try {
      const { size, lastModified } = await (await this.#folder.getFileHandle(name)).getFile();
      if (lastModified >= this.#openedAt) return 0;
      await this.#folder.removeEntry(name);
      return size;
    } catch {
      // Another thread was faster, or the browser does not let it go.
      return 0;
    } finally {
      release();
    }
  }
}

/** One block's place, this tab's alone until it is closed. Nothing here throws; promises come to nothing instead. */
class Place {
  #store;
  #folder;
  #name;
  #release;
  #part = null;

  constructor(store, folder, name, release) {
    this.#store = store;
    this.#folder = folder;
    this.#name = name;
    this.#release = release;
  }

  /** The whole block's bytes; rejected if there are none. */
  async read() {
    const file = await this.#folder.getFileHandle(this.#name);
    const handle = await file.createSyncAccessHandle();
    try {
      const bytes = readAll(handle);
      // Its last byte once more: it was used now.
      if (bytes.length > 0) handle.write(bytes.subarray(-1), { at: bytes.length - 1 });
      return bytes;
    } finally {
      handle.close();
    }
  }

  /** Removes the block. */
  remove() {
    return this.#folder.removeEntry(this.#name);
  }

  /** Opens the part of a block of `blockBytes`; resolves to what it holds. Rejected if it cannot be used: nothing is kept. */
  async openPart(blockBytes) {
    if (!(await this.#store.reserve(blockBytes))) return null;
    const file = await this.#folder.getFileHandle(`${this.#name}.part`, { create: true });
    const handle = await file.createSyncAccessHandle();
    try {
      if (handle.getSize() > blockBytes) handle.truncate(0);
      const bytes = readAll(handle);
      this.#part = { file, handle, length: bytes.length };
      return bytes;
    } catch (error) {
      handle.close();
      throw error;
    }
  }

  /** Writes bytes at `offset`; what was behind `offset` is gone. A disk that is full ends the keeping, not the download. */
  write(offset, bytes) {
    if (!this.#part) return;
    const { handle, length } = this.#part;
    try {
      if (offset < length) handle.truncate(offset);
      for (let written = 0; written < bytes.length; ) {
        const n = handle.write(bytes.subarray(written), { at: offset + written });
        if (n === 0) throw new Error("nothing was written");
        written += n;
      }
      this.#part.length = offset + bytes.length;
    } catch {
      this.#giveUp();
    }
  }

  /** The part is complete and checked: it gets the block's name. */
  async finish() {
    if (!this.#part) return;
    const { file, handle } = this.#part;
    this.#part = null;
    try {
      handle.flush();
    } finally {
      handle.close();
    }
    await file.move(this.#name);
  }

  /** Lets other tabs have the place. Of a download that was cut off the part stays. */
  close() {
    try {
      this.#part?.handle.flush();
    } catch {
      // What is on the disk counts, whatever it is.
    }
    this.#part?.handle.close();
    this.#part = null;
    this.#release();
  }

  #giveUp() {
    const { handle } = this.#part;
    this.#part = null;
    try {
      handle.truncate(0);
    } catch {
      // It stays as it is, and the next download goes on after it or overwrites it.
    }
    handle.close();
  }
}

function readAll(handle) {
  const bytes = new Uint8Array(handle.getSize());
  const read = handle.read(bytes, { at: 0 });
  return bytes.subarray(0, read);
}

/** Resolves to what gives the lock of a block back, once it is held; to null if it cannot be had. */
function acquire(name, options) {
  return new Promise((resolve) => {
    const held = (lock) => (lock ? new Promise((release) => resolve(release)) : resolve(null));
    navigator.locks.request(`${FOLDER}/${name}`, options, held).catch(() => resolve(null));
  });
}
