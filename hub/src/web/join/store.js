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
/** What pruning leaves of the bound: not every new block prunes again. */
const PRUNED_SHARE = 0.9;

/**
 * The store; null where the browser has none: insecure contexts and some private windows. `sharers` threads have one each, and
 * keep about equally much.
 */
export async function openStore(maxBytes = MAX_STORED_BYTES, sharers = 1) {
  try {
    if (!navigator.locks) return null;
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle(FOLDER, { create: true });
    const { quota } = (await navigator.storage.estimate?.()) ?? {};
    return new Store(folder, Math.min(maxBytes, quota ? quota * MAX_STORED_SHARE : maxBytes), sharers);
  } catch {
    return null;
  }
}

class Store {
  #folder;
  #maxBytes;
  #sharers;
  #openedAt = Date.now();
  /** Bytes that were stored at the last look. Settles when nobody looks or prunes any more. */
  #stored;
  /** Bytes of the blocks that came since, and of those on their way, by place. */
  #added = 0;
  #coming = new Map();
  /** Nothing here can go: what comes now is not kept. */
  #isFull = false;

  constructor(folder, maxBytes, sharers) {
    this.#folder = folder;
    this.#maxBytes = maxBytes;
    this.#sharers = sharers;
    this.#stored = this.#prune();
  }

  /** The place of the block with this hash; null if another tab does not give it up in time. */
  async place(name) {
    const release = await acquire(name, { signal: AbortSignal.timeout(LOCK_PATIENCE_MILLIS) });
    return release && new Place(this, this.#folder, name, release);
  }

  /** Whether a place may store so many bytes; prunes for them. */
  async reserve(place, bytes) {
    this.#coming.set(place, bytes);
    if (!(await this.#fits()) && !this.#isFull) {
      this.#stored = this.#stored.then(() => this.#prune());
    }
    const fits = await this.#fits();
    if (!fits) this.#coming.delete(place);
    return fits;
  }

  /** What a place reserved is stored now, or never will be. */
  settle(place) {
    this.#added += this.#coming.get(place) ?? 0;
    this.#coming.delete(place);
  }

  async #fits() {
    return (await this.#stored) + this.#more() <= this.#maxBytes;
  }

  /** What came since the last look and is on its way, to the other sharers too. */
  #more() {
    return this.#sharers * [...this.#coming.values()].reduce((sum, bytes) => sum + bytes, this.#added);
  }

  /** Measures, and removes what was used least recently if it is too much; what was used since this tab began stays. */
  async #prune() {
    try {
      this.#added = 0;
      const files = [];
      for await (const [name, handle] of this.#folder.entries()) {
        const file = await handle.getFile().catch(() => null);
        if (file) files.push({ name, size: file.size, usedAt: file.lastModified });
      }
      let stored = files.reduce((sum, { size }) => sum + size, 0);
      if (stored + this.#more() <= this.#maxBytes) return stored;
      files.sort((a, b) => a.usedAt - b.usedAt);
      for (const { name, size, usedAt } of files) {
        if (stored + this.#more() <= this.#maxBytes * PRUNED_SHARE || usedAt >= this.#openedAt) break;
        if (await this.#remove(name)) stored -= size;
      }
      this.#isFull = stored + this.#more() > this.#maxBytes;
      return stored;
    } catch {
      this.#isFull = true;
      return Infinity;
    }
  }

  /** Removes a file that no tab works on. */
  async #remove(name) {
    const release = await acquire(name.replace(/\.part$/, ""), { ifAvailable: true });
    if (!release) return false;
    const removed = await this.#folder.removeEntry(name).then(() => true, () => false);
    release();
    return removed;
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
    if (!(await this.#store.reserve(this, blockBytes))) return null;
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
    this.#store.settle(this);
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
