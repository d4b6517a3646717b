// The sentence explorer of each run. Texts become text nodes, so that nothing in them is markup.
document.querySelectorAll("form.controls").forEach((form) => {
  const [data, results, more, count] = ["data", "results", "more", "count"].map((name) => document.getElementById(form.dataset.prefix + name));
  const { languages, sets } = JSON.parse(data.textContent);
  const PAGE = 20;
  const TOKENS = /[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[\p{L}\p{M}\p{N}_'’-]+|\s+|./gsu;
  let chosen = [];
  let shown = 0;

  const make = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const fill = (select, options) => select.replaceChildren(...options.map(([value, label]) => make("option", { value }, label)));
  const number = (name, otherwise) => (form.elements[name].value.trim() === "" ? otherwise : Number(form.elements[name].value));
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(1);

  const current = () => sets[Number(form.elements.set.value)];
  const LABELS = { bleu: "sentence BLEU", chrf: "chrF" };
  const scores = (set) => set.scores[form.elements.score.value] || null;

  // For each sentence the score of a system, or its difference to another system; null without scores.
  const values = (set) => {
    const of = scores(set);
    if (!of) return null;
    const [a, b] = [form.elements.a.value, form.elements.b.value];
    return b === "" ? of[a] : of[a].map((value, i) => value - of[b][i]);
  };

  const chooseSet = () => {
    const set = current();
    const names = set.systems.map((name, i) => [String(i), name]);
    const score = form.elements.score.value;
    fill(form.elements.score, Object.keys(set.scores).map((key) => [key, LABELS[key]]));
    if (score in set.scores) form.elements.score.value = score;
    const labels = [form.elements.a, form.elements.b].map((select) => select.selectedOptions[0] && select.selectedOptions[0].textContent);
    fill(form.elements.a, names);
    fill(form.elements.b, [["", "nothing"], ...names]);
    const before = labels.map((label) => (label === "nothing" ? "" : String(set.systems.indexOf(label))));
    if (!before.includes("-1")) [form.elements.a.value, form.elements.b.value] = before;
    else if (names.length > 1) [form.elements.a.value, form.elements.b.value] = ["1", "0"];
  };

  const keep = (set, of) => {
    const [low, high, least] = [number("from", 0), number("to", Infinity), number("least", 0)];
    const [way, words] = [form.elements.way.value, form.elements.words.value.toLowerCase()];
    const attended = form.elements.attended && form.elements.attended.checked;
    const texts = [set.src, ...set.refs, ...set.hyps];
    return [...set.line.keys()].filter((i) => {
      const value = of ? of[i] : 0;
      return (
        (!set.length || (set.length[i] >= low && set.length[i] <= high)) &&
        (least === 0 || Math.abs(value) >= least) &&
        (way === "both" || (way === "up" ? value > 0 : value < 0)) &&
        (!attended || (set.attention || []).some((one) => String(i) in one.of)) &&
        (words === "" || texts.some((text) => text[i].toLowerCase().includes(words)))
      );
    });
  };

  const ordered = (set, of, places) => {
    const value = (i) => (of ? of[i] : 0);
    const length = (i) => (set.length ? set.length[i] : set.src[i].length);
    const by = {
      up: (a, b) => value(b) - value(a),
      down: (a, b) => value(a) - value(b),
      size: (a, b) => Math.abs(value(b)) - Math.abs(value(a)),
      short: (a, b) => length(a) - length(b),
      long: (a, b) => length(b) - length(a),
    }[form.elements.order.value];
    return by ? places.sort((a, b) => by(a, b) || a - b) : places;
  };

  // True for each token of a text that is in a longest common subsequence with another text.
  const common = (own, other) => {
    const width = other.length + 1;
    const best = new Uint16Array((own.length + 1) * width);
    for (let i = own.length - 1; i >= 0; i--)
      for (let j = other.length - 1; j >= 0; j--)
        best[i * width + j] =
          own[i] === other[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    const found = new Array(own.length).fill(false);
    for (let i = 0, j = 0; i < own.length && j < other.length; ) {
      if (own[i] === other[j]) (found[i++] = true), j++;
      else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i++;
      else j++;
    }
    return found;
  };

  const marked = (text, other) => {
    if (text === "") return [make("em", {}, "(empty)")];
    if (other === null) return [text];
    const own = text.match(TOKENS) || [];
    const kept = common(own, other.match(TOKENS) || []);
    const pieces = [];
    for (let i = 0; i < own.length; ) {
      let end = i;
      while (end < own.length && kept[end] === kept[i]) end++;
      const piece = own.slice(i, end).join("");
      pieces.push(kept[i] ? piece : make("mark", {}, piece));
      i = end;
    }
    return pieces;
  };

  // The text that an output is compared with: the reference, or the output of the other chosen system.
  const partner = (set, system, i) => {
    const how = form.elements.mark.value;
    if (how === "none") return null;
    const [a, b] = [Number(form.elements.a.value), form.elements.b.value];
    if (how === "ref" || b === "") return set.refs.length ? set.refs[0][i] : null;
    return set.hyps[system === Number(b) ? a : Number(b)][i];
  };

  const heat = (found, system) => {
    const head = make("tr", {}, make("td", { class: "left" }, "written ↓ read →"), ...found.src.map((token) => make("th", { scope: "col" }, token)));
    const rows = found.tgt.map((token, t) => {
      const cells = [...found.rows[t]].map((digit) => {
        const weight = parseInt(digit, 36) / 35;
        const percent = Math.round(100 * weight);
        const cell = make("td", {}, percent >= 5 ? String(percent) : "");
        cell.style.background = `rgba(var(--heat), ${(0.4 * weight).toFixed(3)})`;
        return cell;
      });
      return make("tr", {}, make("th", { scope: "row", class: "left" }, token), ...cells);
    });
    const caption = make("caption", {}, make("span", {}, `Attention of ${system} in per cent: each row is a token that was written, each column a source token that was read`));
    return make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `attention of ${system}` }, make("table", { class: "attention" }, caption, make("thead", {}, head), make("tbody", {}, ...rows)));
  };

  // A button for each system whose attention to the sentence is known, and after the buttons a place for each attention.
  const looking = (set, i) => {
    const pairs = (set.attention || []).filter((one) => String(i) in one.of).map((one) => {
      const button = make("button", { type: "button", class: "look", "aria-expanded": "false" }, `Attention of ${one.system}`);
      const place = make("div", { hidden: "" });
      button.addEventListener("click", () => {
        if (!place.firstChild) place.append(heat(one.of[String(i)], one.system));
        place.hidden = !place.hidden;
        button.setAttribute("aria-expanded", String(!place.hidden));
      });
      return [button, place];
    });
    return pairs.length ? [make("p", { class: "looks" }, ...pairs.map(([button]) => button)), ...pairs.map(([, place]) => place)] : [];
  };

  const row = (name, score, language, pieces) => {
    const title = make("dt", {}, name);
    if (score !== null) title.append(" ", make("span", { class: "score" }, score.toFixed(1)));
    return make("div", {}, title, make("dd", { lang: language, dir: "auto" }, ...pieces));
  };

  const item = (set, of, i) => {
    const [src, tgt] = languages;
    const own = scores(set);
    const names = set.systems;
    const b = form.elements.b.value;
    const facts = set.length ? [`source length ${set.length[i]}`] : [];
    if (of && b !== "") facts.push(`${names[form.elements.a.value]} − ${names[b]}: ${signed(of[i])}`);
    const rows = [row("source", null, src, marked(set.src[i], null))];
    set.refs.forEach((ref, r) => rows.push(row(set.refs.length > 1 ? `reference ${r + 1}` : "reference", null, tgt, marked(ref[i], null))));
    set.hyps.forEach((hyp, s) => rows.push(row(names[s], own ? own[s][i] : null, tgt, marked(hyp[i], partner(set, s, i)))));
    const where = make("p", { class: "where" }, make("strong", {}, `Line ${set.line[i]}`), facts.length ? ": " + facts.join("; ") : "");
    return make("li", {}, where, make("dl", {}, ...rows), ...looking(set, i));
  };

  const showMore = () => {
    const [set, of] = [current(), values(current())];
    const next = chosen.slice(shown, shown + PAGE);
    const items = next.map((i) => item(set, of, i));
    results.append(...items);
    shown += next.length;
    more.hidden = shown >= chosen.length;
    more.textContent = `Show ${Math.min(PAGE, chosen.length - shown)} more of ${(chosen.length - shown).toLocaleString("en")}`;
    return items[0];
  };

  const update = () => {
    const set = current();
    const of = values(set);
    chosen = ordered(set, of, keep(set, of));
    shown = 0;
    results.replaceChildren();
    showMore();
    const mean = of && chosen.length ? chosen.reduce((sum, i) => sum + of[i], 0) / chosen.length : null;
    const what = form.elements.b.value === "" ? "mean score" : "mean difference";
    const shownMean = mean === null ? "" : `, ${what} ${form.elements.b.value === "" ? mean.toFixed(1) : signed(mean)}`;
    count.textContent =
      `${chosen.length.toLocaleString("en")} of ${set.line.length.toLocaleString("en")} sentences${shownMean}`;
  };

  fill(form.elements.set, sets.map((set, i) => [String(i), set.name]));
  chooseSet();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.name === "set") chooseSet();
    update();
  });
  more.addEventListener("click", () => {
    const first = showMore();
    if (first) {
      first.tabIndex = -1;
      first.focus();
    }
  });
  form.hidden = false;
  update();
});
