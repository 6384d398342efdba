// Names and values in a list, changed in place so that a selection and what a screen reader has read stay.

import { element } from "./format.js";

/** Shows `pairs` of a name and a text in a `dl`. */
export function showFacts(list, pairs) {
  while (list.childElementCount < pairs.length) {
    const pair = element("div");
    pair.append(element("dt"), element("dd"));
    list.append(pair);
  }
  pairs.forEach(([name, value], index) => {
    const [dt, dd] = list.children[index].children;
    setText(dt, name);
    setText(dd, value);
  });
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
