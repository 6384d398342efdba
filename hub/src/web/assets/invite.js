// The links by which machines join: the one under this page's own origin first, with a code for phones; for everyone, and by
// invitation for one machine.

import { copies } from "./copy.js";
import { element } from "./format.js";
import { getInvitation, getJoin } from "./hub.js";
import { button } from "./message.js";

/** Fills `section` with the links. Throws what the hub says when it does not tell them. */
export async function showInvite(section) {
  const { links } = await getJoin();
  const [own, ...others] = links;
  const hasWay = links.some(({ reachable }) => reachable);
  const parts = [];
  if (own.reachable) {
    parts.push(element("p", "", "Open this link on another machine, scan its code with a phone, or give it to “moex worker”:"), link(own));
  } else {
    parts.push(element("p", "", "On this machine, open this link in a browser or give it to “moex worker”:"), link(own));
    const elsewhere = hasWay
      ? "It says this machine’s name for itself, so others cannot open it. They open one of these:"
      : "Other machines cannot reach this hub: it listens on this one alone. “moex serve --lan” opens it to the network.";
    parts.push(element("p", "", elsewhere));
  }
  const reachable = others.filter(({ reachable }) => reachable);
  if (reachable.length > 0 && own.reachable) parts.push(element("p", "", "The same hub by its other addresses:"));
  parts.push(...reachable.map(link));
  section.querySelector(".links").replaceChildren(...parts);
  section.hidden = false;
}

/** Shows the links of the invitation that is asked for in `form`, in `list`; what is wrong goes to `wrong`. */
export function invitesByName(form, list, wrong) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = form.querySelector("input").value.trim();
    list.replaceChildren();
    wrong.textContent = "";
    try {
      const { links } = await getInvitation(name);
      const reachable = links.filter((each) => each.reachable);
      list.replaceChildren(...(reachable.length > 0 ? reachable : links).map(link));
    } catch (error) {
      wrong.textContent = error.message;
    }
  });
}

function link({ url, qr_svg: picture }) {
  const box = element("div", "invite");
  const row = element("div", "copy");
  const copy = button("Copy", () => {});
  copies(copy, () => url);
  row.append(element("code", "join-url", url), copy);
  box.append(row);
  if (picture) box.append(code(picture, url));
  return box;
}

/** The picture as the hub drew it, taken apart as XML: nothing in it can run. */
function code(picture, url) {
  const svg = document.importNode(new DOMParser().parseFromString(picture, "image/svg+xml").documentElement, true);
  svg.classList.add("qr");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `QR code of ${new URL(url).origin}/join with the token`);
  return svg;
}
