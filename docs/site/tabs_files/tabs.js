// A language that is chosen in one group of tabs is chosen in all groups, and on the next page.
const CHOSEN = "agentmemory-language";

function choose(language) {
  for (const input of document.querySelectorAll(".tabs > input")) {
    if (input.value === language) input.checked = true;
  }
}

document.addEventListener("change", ({ target }) => {
  if (!target.matches(".tabs > input")) return;
  const label = target.nextElementSibling;
  const before = label.getBoundingClientRect().top;
  choose(target.value);
  // Groups above became longer or shorter: keep this one where it is.
  window.scrollBy({ top: label.getBoundingClientRect().top - before, behavior: "instant" });
  try {
    localStorage.setItem(CHOSEN, target.value);
  } catch {
    // A browser may refuse to store anything.
  }
});

try {
  choose(localStorage.getItem(CHOSEN));
} catch {
  // As above.
}
