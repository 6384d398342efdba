// What the browser keeps for these pages. Reading never fails; what cannot be written lasts as long as the page.

/** One of the browser's storages. Some browsers refuse them altogether, and each has a quota. */
function area(name) {
  const unwritten = new Map();
  const attempt = (action) => {
    try {
      return action(window[name]);
    } catch {
      return undefined;
    }
  };
  return {
    /** The text, or null. */
    read: (key) => unwritten.get(key) ?? attempt((storage) => storage.getItem(key)) ?? null,

    /** Whether the browser keeps the text beyond this page. */
    write(key, text) {
      const isKept = attempt((storage) => storage.setItem(key, text) ?? true) === true;
      if (isKept) unwritten.delete(key);
      else unwritten.set(key, text);
      return isKept;
    },

    remove(key) {
      unwritten.delete(key);
      attempt((storage) => storage.removeItem(key));
    },

    keys: () => [...new Set([...(attempt((storage) => Object.keys(storage)) ?? []), ...unwritten.keys()])],
  };
}

/** Until the tab is closed, reloads included. */
export const ofTab = area("sessionStorage");

/** For all tabs of this browser at this address. */
export const ofBrowser = area("localStorage");
