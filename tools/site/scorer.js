// How Sphinx's search orders what it finds: words of a page's title count most, whether singular or plural; texts of
// runs, changes and what is about this repository come last.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  words: (text) => (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).map((word) => word.replace(/(?<=..)s$/, "")),
  last: /\.(txt|json|py)$|^(CHANGELOG|CONTRIBUTING|LICENSE|local|infra|tests|spark_jobs|examples|foreign)\b/,
  score: ([page, title, anchor, about, score]) => {
    const asked = Scorer.words(new URLSearchParams(window.location.search).get("q") ?? "");
    const inPart = (part) => {
      const there = new Set(Scorer.words(part));
      return asked.length ? asked.filter((word) => there.has(word)).length / asked.length : 0;
    };
    const [ofPage, ofSection = ""] = title.split(" > ");
    const all = inPart(ofPage) === 1 ? 15 : 0;
    return score + all + 15 * inPart(ofPage) + 5 * inPart(ofSection) - (Scorer.last.test(page) ? 40 : 0);
  },
};
