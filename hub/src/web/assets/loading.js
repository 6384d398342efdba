// Asks the hub how far it is, and opens the page that was asked for once it is ready.

const INTERVAL_MS = 1000;

const progress = document.getElementById("progress");
const bar = document.getElementById("bar");

function show({ phase, percent, eta_seconds: eta }) {
  const parts = [percent === null ? null : `${percent} %`, phase, eta === null ? null : `about ${eta} s left`];
  progress.textContent = `moex is loading: ${parts.filter(Boolean).join(", ")}`;
  document.title = percent === null ? "moex is loading" : `${percent} %: moex is loading`;
  if (percent === null) {
    bar.removeAttribute("value");
  } else {
    bar.value = percent;
  }
}

async function look() {
  try {
    const health = await (await fetch("/health", { cache: "no-store" })).json();
    if (health.status !== "loading") {
      // The fragment, which may hold the join token, stays.
      location.reload();
      return;
    }
    show(health);
  } catch {
    progress.textContent = "The hub does not answer: it may have stopped. This page keeps trying.";
  }
  setTimeout(look, INTERVAL_MS);
}

look();
