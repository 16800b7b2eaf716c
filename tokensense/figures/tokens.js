// Search, jumps and a second pane. Everything else works by style rules, without this script, as in
// frames that run none. It reads the page and adds classes; it writes no markup from texts.
"use strict";
const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
const one = (id) => document.getElementById(id);
const said = one("said");
let found = [], at = -1;

function typing(target) { return target.matches("input[type=search], select"); }

// A token is reached through its radio button: focus shows its numbers and scrolls to it.
function go(label) {
  const input = label.querySelector("input");
  input.checked = true;
  input.focus();
  label.scrollIntoView({ block: "center", inline: "nearest" });
}

function search() {
  all(".m").forEach((label) => label.classList.remove("m"));
  const wanted = one("search").value.toLowerCase();
  found = []; at = -1;
  if (wanted) {
    for (const trace of all(".tokens:not(.beside)")) {
      const labels = all("label", trace), ends = [];
      let text = "";
      for (const label of labels) { text += label.textContent.toLowerCase(); ends.push(text.length); }
      let token = 0;
      for (let place = text.indexOf(wanted); place >= 0; place = text.indexOf(wanted, place + 1)) {
        while (ends[token] <= place) token += 1;
        found.push(labels[token]);
        for (let t = token; t < labels.length && (t === token || ends[t - 1] < place + wanted.length); t += 1)
          labels[t].classList.add("m");
      }
    }
  }
  said.textContent = wanted ? `${found.length} found` : "";
}

function step(by) {
  if (!found.length) return;
  at = at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length;
  go(found[at]);
  said.textContent = `${at + 1} of ${found.length} found`;
}

// The next of some tokens behind the one in focus, around the end of the page.
function jump(selector, by) {
  const goals = all(selector);
  if (!goals.length) { said.textContent = "none of this sort on the page"; return; }
  const here = document.activeElement.closest(".tokens label");
  const behind = (label) => here && Boolean(here.compareDocumentPosition(label) & 4);
  const before = (label) => here && Boolean(here.compareDocumentPosition(label) & 2);
  const rest = by > 0 ? goals.filter(behind) : goals.filter(before).reverse();
  go(rest[0] || (by > 0 ? goals[0] : goals[goals.length - 1]));
}

function nextColor() {
  const inputs = all("input[name=by]");
  const next = inputs[(inputs.findIndex((input) => input.checked) + 1) % inputs.length];
  next.checked = true;
  said.textContent = `colored by ${next.parentElement.textContent.trim()}`;
}

function nextUnderline() {
  const choice = one("un");
  choice.selectedIndex = (choice.selectedIndex + 1) % choice.options.length;
  said.textContent = `underlined by ${choice.value}`;
}

// The second pane holds the same tokens once more, without radio buttons: colored otherwise.
function beside() {
  const wanted = one("be").selectedIndex > 0;
  document.body.classList.toggle("two", wanted);
  all(".beside").forEach((copy) => { copy.dataset.pane = one("be").value; });
  if (!wanted || document.querySelector(".beside")) return;
  for (const tokens of all(".tokens")) {
    const copy = tokens.cloneNode(true);
    copy.classList.add("beside");
    copy.dataset.pane = one("be").value;
    copy.setAttribute("role", "group");
    copy.setAttribute("aria-label", `${tokens.getAttribute("aria-label")}, second pane`);
    all("input", copy).forEach((input) => input.remove());
    tokens.after(copy);
    tokens.dataset.pane = "colored as chosen above";
  }
}

const KEYS = {
  "/": () => one("search").focus(),
  n: () => step(1),
  N: () => step(-1),
  w: () => jump(".tokens:not(.beside) .w", 1),
  W: () => jump(".tokens:not(.beside) .w", -1),
  t: () => jump(".tokens:not(.beside) label:first-of-type", 1),
  T: () => jump(".tokens:not(.beside) label:first-of-type", -1),
  c: nextColor,
  u: nextUnderline,
};

all("[data-js]").forEach((part) => { part.hidden = false; });
one("search").addEventListener("input", search);
one("be").addEventListener("change", beside);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event.target)) {
    if (event.key === "Enter" && event.target.id === "search") {
      step(event.shiftKey ? -1 : 1);
      event.preventDefault();
    }
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act) { act(); event.preventDefault(); }
});
