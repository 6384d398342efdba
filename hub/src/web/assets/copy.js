// Copying text, also on pages of plain http, which have no clipboard of their own.

const SHOWN_MILLIS = { true: 1500, false: 6000 };

/** Whether the text is on the clipboard now. Call it while handling a click or a key. */
export async function copyText(text) {
  try {
    // Absent without a secure context, and refused where the browser asks its user.
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text);
  }
}

/** The old way: select the text in a field, and have the browser copy what is selected. */
function copySelection(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.className = "offscreen";
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  let copied = false;
  try {
    copied = document.execCommand("copy");
  } catch {
    copied = false;
  }
  field.remove();
  before?.focus?.();
  return copied;
}

/** Makes a button copy what `text()` gives, and say whether it did. */
export function copies(button, text) {
  const label = button.textContent;
  let timer = 0;
  button.addEventListener("click", async () => {
    const isCopied = await copyText(text());
    button.textContent = isCopied ? "Copied" : "Not copied: select it and copy by hand";
    clearTimeout(timer);
    timer = setTimeout(() => (button.textContent = label), SHOWN_MILLIS[isCopied]);
  });
}
