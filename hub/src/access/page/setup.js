// The welcome page: hands the token on, and looks whether this device trusts the hub already. All else is in the page.

const https = document.querySelector("main").dataset.https;
// The token alone: what native workers need besides stands behind a comma.
const token = location.hash.slice(1).split(",")[0];
const CHECK_EVERY_MILLIS = 3000;
const CHECK_PATIENCE_MILLIS = 2500;

for (const link of document.querySelectorAll("[data-carries-token]")) {
  if (!token) continue;
  link.href = `${link.dataset.trustedTo ?? link.getAttribute("href")}#${token}`;
}

/** Whether the https port answers, which it does for a device that trusts its certificate. */
async function isTrusted() {
  try {
    const answer = await fetch(`${https}/reached`, {
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.timeout(CHECK_PATIENCE_MILLIS),
    });
    return answer.ok;
  } catch {
    return false;
  }
}

async function check() {
  if (document.visibilityState !== "visible" || !(await isTrusted())) return false;
  document.getElementById("trusted").hidden = false;
  // Who scanned the code came to join; who came without a token stays to choose.
  if (token) location.replace(`${https}/join#${token}`);
  return true;
}

async function keepChecking() {
  if (!(await check())) setTimeout(keepChecking, CHECK_EVERY_MILLIS);
}

addEventListener("hashchange", () => location.reload());
keepChecking();
