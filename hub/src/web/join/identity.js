// Who this tab is to the hub, and what its visitor has chosen before.

/** Settings of this browser for this hub. A browser that keeps nothing forgets them with the page. */
export const settings = {
  read(key) {
    try {
      return localStorage.getItem(`moex.${key}`);
    } catch {
      return null;
    }
  },
  /** A null forgets. */
  write(key, value) {
    try {
      if (value === null) localStorage.removeItem(`moex.${key}`);
      else localStorage.setItem(`moex.${key}`, value);
    } catch {
      // Nothing is kept, and nothing depends on it.
    }
  },
};

const MAX_TABS = 64;
const RELOAD_PATIENCE_MILLIS = 3000;
const SLOT = "moex.slot";

/** Gives this tab's slot to whoever wants it next: a window that goes on in its stead, for one. */
export let releaseSlot = () => {};

/** Resolves to whether this tab now holds the lock of `slot`; it does until it is closed, or releases it. */
function hold(slot, options) {
  return new Promise((resolve) => {
    const held = (lock) => {
      resolve(lock !== null);
      return lock && new Promise((release) => (releaseSlot = release));
    };
    navigator.locks.request(`moex-worker-${slot}`, options, held).catch(() => resolve(false));
  });
}

/** A number no other open tab of this browser has: a reloaded tab gets its own again, a new one the first that is free. */
async function claimSlot() {
  const mine = sessionStorage.getItem(SLOT);
  if (mine !== null && (await hold(mine, { signal: AbortSignal.timeout(RELOAD_PATIENCE_MILLIS) }))) return mine;
  for (let slot = 0; slot < MAX_TABS; slot += 1) {
    if (await hold(slot, { ifAvailable: true })) return String(slot);
  }
  throw new Error("Too many tabs of this browser lend already: close one of them.");
}

const freshKey = () =>
  [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * The secret of this tab's slot, from which the worker's id follows. Where there are no locks or nothing is kept, each visit is
 * a worker of its own.
 */
export async function workerKey() {
  if (!navigator.locks) return freshKey();
  try {
    sessionStorage.getItem(SLOT);
  } catch {
    return freshKey();
  }
  const slot = await claimSlot();
  sessionStorage.setItem(SLOT, slot);
  const known = settings.read(`key.${slot}`);
  if (/^[0-9a-f]{32}$/.test(known ?? "")) return known;
  const key = freshKey();
  settings.write(`key.${slot}`, key);
  return key;
}
