// How a result of the search counts: titles and headings before texts; decisions, lists of changes and files after all other pages.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 60,
  partialTitle: 20,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    if (/^(adr|files|claims|repository)\//.test(page)) return score - 1000;
    if (/^groups\//.test(page)) return score - 100;
    if (/^(examples\/|reference\/endpoints)/.test(page)) return score / 10;
    return score + inTitle(title) - (/^reference\//.test(page) ? 1 : 0);
  },
};

// A word in the title of a page counts more than one in a heading below it, and most in a short title.
function inTitle(title) {
  const asked = typeof location === "undefined" ? "" : new URLSearchParams(location.search).get("q") || "";
  const has = asked.toLowerCase().split(/\s+/).some((word) => word && title.split(" > ")[0].toLowerCase().includes(word));
  return has && !title.includes(" > ") ? 20 - Math.min(title.length, 80) / 8 : 0;
}
