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
    return /^(reference|examples)\//.test(page) ? score - 1 : score;
  },
};
