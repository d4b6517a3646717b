"""The page in Chromium: no errors, no requests; sorting, filters, keyboard, contrast, phone, print,
and without scripts.
"""

import base64
import itertools
import json
import os
import random

import pytest

from nmtkit.analyze.attention import SystemAttention
from nmtkit.report import stage
from nmtkit.score.stage import score
from tests.score.conftest import write

from .browser import Browser, find
from .conftest import SCRIPT, make

CONTRAST = """(() => {
  const parse = (text) => {
    const n = text.match(/[\\d.]+/g).map(Number);
    return n.length > 3 ? n : [...n, 1];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const back = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement)
      layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("svg, script, noscript") || !element.checkVisibility()) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const under = back(element);
    const text = light(over(parse(getComputedStyle(element).color), under));
    const [a, b] = [text, light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const name = element.tagName + "." + element.className;
    found.push([ratio, name + ": " + element.textContent.trim().slice(0, 40)]);
  }
  return found;
})()"""
LONG_NAME = "a-system-with-a-long-name-of-its-own"
STOPS = "a[href], button, select, input:not([type='radio']:not(:checked)), summary, [tabindex='0']"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small run with two sets, findings, markup in its texts, and attention."""
    made = make(tmp_path_factory.mktemp("browser") / "run", sets=("test", "other"))
    made.finding("cost", "cost")
    made.finding("gates", "gates", rows=40)
    made.finding("convergence", "curves")
    source = ["ein", "</s>"]
    first = {
        "src": source,
        "tgt": ["a", "<b>", "</s>"],
        "weights": [[0.9, 0.1], [0.5, 0.5], [0, 1]],
    }
    second = {"src": source, "tgt": ["c", "</s>"], "weights": [[0.2, 0.8], [0.3, 0.7]]}
    attachments = {}
    for system, sentences in (("base", {4: first, 6: second}), ("own", {4: second})):
        kept = SystemAttention(system=system, site="last", set_name="test", sentences=sentences)
        attachments[f"{system}.json"] = kept.model_dump_json()
    made.finding("attention", "attention", attachments=attachments)
    return made.run


@pytest.fixture(scope="module")
def written(small):
    """The page of the small run."""
    return stage.report(small)


@pytest.fixture(scope="module")
def of_two(small, tmp_path_factory):
    """The page of another run and of the small run."""
    systems = (("base", 0.3), (LONG_NAME, 0.05))
    made = make(tmp_path_factory.mktemp("other") / "other-run", systems=systems, markup=False)
    score(made.run, metrics="bleu", resamples=20, trials=20)
    return stage.report(made.run, also=[small.path])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if find() is None:
        message = "no Chromium here: the page was not tried in a browser (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium, written):
    """The page, just opened."""
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.open(written)
    yield chromium
    assert chromium.errors == []


def systems_in(browser, table="#comparison table"):
    """Return the first cells of a table."""
    rows = f"[...document.querySelector('{table}').tBodies[0].rows]"
    return browser.run(f"{rows}.map((row) => row.cells[0].textContent)")


def choose(browser, values, form=0):
    """Set values of a form, each followed by its event."""
    browser.run(
        f"for (const [name, value] of Object.entries({json.dumps(values)})) {{ const f ="
        f" document.forms[{form}].elements[name]; f.type === 'checkbox' ? (f.checked = value) :"
        " (f.value = value); f.dispatchEvent(new Event('input', {bubbles: true})); }"
    )


def count(browser, prefix=""):
    return int(
        browser.run(f"document.getElementById('{prefix}count').textContent").split(" of ")[0]
    )


def test_page_requests_nothing_and_logs_no_error(browser, written):
    assert {url.partition(",")[0] for url in browser.requests} <= {f"file://{written}", "data:"}
    browser.run("console.error('this is seen')")
    assert browser.errors and "this is seen" in browser.errors.pop()


@pytest.fixture
def long_line(tmp_path):
    """A run whose second line has 20,000 words, and attention of 300² weights in that line."""
    made, rng = make(tmp_path / "run", markup=False), random.Random(1)
    folders = [made.run.system(name).translation("test") for name in ("base", "own")]
    for path in (made.run.source("test"), *(folder / "hyp.txt" for folder in folders)):
        lines = path.read_text("utf-8").splitlines()
        lines[1] = " ".join(rng.choices("abcdefgh", k=20_000))
        write(path, lines)
    weights = [[0.1] * 300 for _ in range(300)]
    sentences = {1: {"src": ["a"] * 300, "tgt": ["b"] * 300, "weights": weights}}
    sentences[2] = {"src": ["a"], "tgt": ["b"], "weights": [[1.0]]}
    kept = SystemAttention(system="own", site="last", set_name="test", sentences=sentences)
    made.finding("attention", "attention", attachments={"own.json": kept.model_dump_json()})
    return made.run


def test_explorer_cuts_long_lines_and_leaves_out_large_attention(chromium, long_line):
    """The differences of 20,000 words need a table of 20,000² cells, too much for a browser."""
    page = stage.report(long_line, force=True)
    text = page.read_text("utf-8")
    assert len(text) < 1_000_000
    assert "1 line longer than 3,000 characters: this page has only the beginning" in text
    assert "attention of own: 1 sentence left out, of more than 40,000" in text
    chromium.open(page)
    assert chromium.run("document.getElementById('results').children.length") == 20
    line = "document.getElementById('results').children[1]"
    assert chromium.run(f"{line}.querySelector('dd').textContent.length") == 3002
    assert chromium.run(f"{line}.querySelectorAll('mark').length") > 100
    assert chromium.run("document.querySelectorAll('button.look').length") == 1
    assert chromium.errors == []


def test_click_on_a_header_sorts_the_table_and_empty_cells_stay_last(browser):
    state = "document.querySelectorAll('#comparison th')[1].getAttribute('aria-sort')"
    assert systems_in(browser) == ["base", "own"]
    for expected, order in (
        ("descending", ["own", "base"]),
        ("ascending", ["base", "own"]),
        (None, ["base", "own"]),
    ):
        browser.click("#comparison th:nth-child(2) button")
        assert (browser.run(state), systems_in(browser)) == (expected, order)
    for _ in ("descending", "ascending"):  # the baseline has no difference
        browser.click("#comparison th:nth-child(3) button")
        assert systems_in(browser) == ["own", "base"]


@pytest.fixture
def scores(browser):
    """The explorer's data of the first set, and the gain of `own` over `base` by line."""
    data = browser.run("JSON.parse(document.getElementById('data').textContent).sets[0]")
    base, own = data["scores"]["bleu"]
    return data, [round(a - b, 6) for a, b in zip(own, base, strict=True)]


def test_filters_select_sentences_by_difference_and_length(browser, scores):
    data, gains = scores
    assert count(browser) == 40
    for values, kept in (
        ({"least": "20"}, [abs(gain) >= 20 for gain in gains]),
        ({"way": "down"}, [gain <= -20 for gain in gains]),
        (
            {"least": "0", "way": "both", "from": "10", "to": "12"},
            [10 <= n <= 12 for n in data["length"]],
        ),
    ):
        choose(browser, values)
        assert 0 <= count(browser) == sum(kept) < 40


def test_order_by_gain_shows_the_largest_gain_first(browser, scores):
    _, gains = scores
    choose(browser, {"order": "up"})
    first = browser.run("document.querySelector('#results .where strong').textContent")
    assert first == f"Line {1 + gains.index(max(gains))}"


def test_search_finds_words_in_any_case(browser):
    browser.click("[name=words]")
    browser.call("Input.insertText", text="ALERT('X')")
    results = browser.run("document.getElementById('results').textContent")
    assert count(browser) == 1 and "Line 3" in results


def test_another_set_keeps_the_chosen_systems(browser, scores):
    data, _ = scores
    choose(browser, {"a": "0", "b": ""})
    systems = (
        "['a', 'b'].map((name) => document.forms[0].elements[name].selectedOptions[0].textContent)"
    )
    before = browser.run(systems)
    choose(browser, {"set": "1"})
    assert before[1] == "nothing" and browser.run(systems) == before
    choose(browser, {"a": "1", "b": "0"})
    text = browser.run("document.querySelector('#results dd').textContent")
    assert text != data["src"][0] and count(browser) == 40


def test_more_button_shows_more_sentences_and_moves_the_focus(browser):
    shown = "document.querySelectorAll('#results > li').length"
    assert browser.run(shown) == 20
    browser.click("#more")
    assert browser.run(shown) == 40 and browser.run("document.getElementById('more').hidden")
    assert browser.run("document.activeElement === document.querySelectorAll('#results > li')[20]")


def test_explorer_shows_markup_in_texts_as_text(browser):
    choose(browser, {"words": "<script>"})
    texts = "[...document.querySelectorAll('#results dd')].map((e) => e.textContent)"
    marks = "document.querySelectorAll('#results mark').length"
    assert browser.run(texts)[0] == SCRIPT
    assert browser.run("document.querySelectorAll('main script, main b').length") == 0
    for how in ("ref", "none", "other"):
        choose(browser, {"mark": how})
        assert browser.run(texts)[-1] == SCRIPT
        assert (browser.run(marks) > 0) == (how != "none")


def test_attention_button_shows_the_weights_of_its_system(browser):
    """A sentence has a button for each system with attention to it."""
    choose(browser, {"attended": True})
    assert count(browser) == 2
    buttons = "(e) => e.querySelectorAll('.look').length"
    assert browser.run(f"[...document.querySelectorAll('#results > li')].map({buttons})") == [2, 1]
    expanded = "document.querySelector('.look').getAttribute('aria-expanded')"
    shown = "[...document.querySelectorAll('.attention')].at(-1)"
    source = ["written ↓ read →", "ein", "</s>"]
    own = [source, ["c", "20", "80"], ["</s>", "29", "69"]]
    base = [source, ["a", "91", "11"], ["<b>", "51", "51"], ["</s>", "", "100"]]
    for button, system, weights in ((".look + .look", "own", own), (".look", "base", base)):
        browser.click(button)
        cells = browser.run(
            "[...document.querySelectorAll('.attention tr')].map((r) => [...r.cells].map((c) =>"
            " c.textContent))"
        )
        assert cells == weights
        caption = browser.run("document.querySelector('.attention caption').textContent")
        assert caption.startswith(f"Attention of {system} in per cent")
        assert min(browser.run(CONTRAST))[0] >= 4.5
        browser.click(button)
        assert not browser.run(f"{shown}.checkVisibility()")
        browser.run("document.querySelectorAll('.attention').forEach((e) => e.remove())")
    assert browser.run(expanded) == "false"
    browser.click(".look")
    assert browser.run(expanded) == "true"


def test_every_control_is_reached_and_works_by_keyboard(browser):
    browser.run("document.querySelectorAll('[data-stop]').forEach((e) => delete e.dataset.stop)")
    code = (
        f"[...document.querySelectorAll({json.dumps(STOPS)})].filter((e) => e.checkVisibility() &&"
        " !e.disabled)"
    )
    wanted = browser.run(f"{code}.map((e, i) => (e.dataset.stop = i)).length")
    reached, unseen = [], []
    for _ in range(wanted):
        browser.press("Tab")
        found = browser.run(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);return"
            " [Number(e.dataset.stop), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >="
            " 2, e.outerHTML.slice(0, 80)]; })()"
        )
        reached.append(found[0])
        unseen += [] if found[1] else [found[2]]
    assert wanted > 40 and reached == list(range(wanted))
    assert unseen == []
    browser.run("document.querySelector('#comparison th button').focus()")
    browser.press("Enter")
    state = "document.querySelector('#comparison th').getAttribute('aria-sort')"
    assert browser.run(state) == "ascending"
    browser.run("document.querySelector('#finding-gates summary').focus()")
    browser.press("Space")
    assert browser.run("document.querySelector('#finding-gates details').open")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_a_contrast_of_4_5(browser, written, dark):
    browser.open(written, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((e) => (e.open = true))")
    ratios = sorted(browser.run(CONTRAST))
    assert len(ratios) > 300 and ratios[0][0] >= 4.5, ratios[:5]
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark
    browser.run("document.querySelector('h1').style.color = '#888888'")
    assert min(browser.run(CONTRAST))[0] < 5.6  # a grey is measured as one


def test_phone_scrolls_only_vertically(browser, written):
    browser.open(written, 390, 844)
    browser.run("document.querySelectorAll('details').forEach((e) => (e.open = true))")
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    # A wide table scrolls inside its frame.
    assert browser.run("document.querySelector('#comparison .scroll').tabIndex") == 0


def test_page_without_scripts_shows_everything_but_the_explorer(browser, written):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(written)
        # The scripts of the page are off; the scripts of the test still run.
        assert browser.run("document.querySelectorAll('button:not([hidden])').length") == 0
        assert browser.run("document.querySelector('noscript p').checkVisibility()")
        assert not browser.run("document.getElementById('controls').checkVisibility()")
        for shown in (
            "#comparison table",
            "#learning svg",
            "#finding-gates svg",
            "#translations mark",
            "#provenance table",
        ):
            assert browser.run(f"document.querySelector('{shown}').checkVisibility()"), shown
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_switch_selects_the_axis_of_the_learning_curves(browser):
    """Only the figure with the chosen axis is visible."""
    shown = (
        "[...document.querySelectorAll('.switched svg')].filter((e) => e.checkVisibility())"
        ".map((e) => e.getAttribute('aria-label').split(' ').at(-1))"
    )
    assert browser.run(shown) == ["updates"]
    for axis in ("minutes", "epochs"):
        browser.click(f"#axis-{axis}")
        assert browser.run(shown) == [axis]


A4 = 210 - 2 * 12
"""Millimetres between the margins of a printed page."""
WIDEST = """(() => {
  document.body.style.width = 'A4mm';
  document.querySelectorAll('details').forEach((e) => (e.open = true));
  return [document.body.clientWidth, ...[...document.querySelectorAll('main table')]
    .filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect().width)];
})()""".replace("A4mm", f"{A4}mm")
TORN = """[...document.querySelectorAll('main td:not(.left), main .word')]
  .filter((e) => e.checkVisibility() && e.textContent.trim())
  .filter((e) => { const range = document.createRange(); range.selectNodeContents(e);
    return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1; })
  .map((e) => e.textContent)"""


@pytest.mark.parametrize("runs", [1, 2])
def test_tables_fit_a4_without_broken_numbers(browser, of_two, runs):
    if runs == 2:  # with a long name
        browser.open(of_two)
    browser.look(media="print")
    body, *tables = browser.run(WIDEST)
    assert len(tables) > 8 and max(tables) <= body
    assert browser.run(TORN) == []
    browser.run(
        "document.querySelector('main td:not(.left)').style.cssText = "
        "'white-space: pre-line; display: block; width: 1rem'"
    )
    browser.run("document.querySelector('main td:not(.left)').textContent = '1 [2, 3]'")
    assert browser.run(TORN) == ["1 [2, 3]"]  # a broken number is seen


def test_printed_page_is_light_without_explorer_and_torn_words(browser):
    browser.look(media="print", dark=True)
    assert not browser.run("document.getElementById('explorer').checkVisibility()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    torn = (
        "[...document.querySelectorAll('tbody th')].filter((t) => getComputedStyle(t).overflowWrap"
        " !== 'normal').length"
    )
    assert browser.run(torn) == 0  # names of settings are torn after their dots alone
    assert browser.run(
        "[...document.querySelectorAll('thead')].every((t) => getComputedStyle(t).breakInside ==="
        " 'avoid')"
    )
    printed = browser.call("Page.printToPDF", printBackground=True)["data"]
    assert base64.b64decode(printed).startswith(b"%PDF-")


STRUCTURE = """(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const attribute = (e, name) => e.getAttribute(name);
  return {
    untitled: all('table').filter((t) => !t.caption || !t.caption.textContent.trim()).length,
    unscoped: all('th').filter((t) => !t.scope).length,
    unlabelled: all('input, select').filter((e) => !e.labels.length).length,
    figures: all('svg').filter(
      (e) => attribute(e, 'role') !== 'img' || !attribute(e, 'aria-label')).length,
    levels: all('h1, h2, h3, h4').map((e) => Number(e.tagName[1])),
    ids: all('[id]').map((e) => e.id),
    links: all('a[href^="#"]').map((e) => document.getElementById(e.hash.slice(1)) !== null),
    names: all('[aria-labelledby]').filter(
      (e) => !document.getElementById(attribute(e, 'aria-labelledby'))).length,
  };
})()"""


def check_structure(found):
    assert not any(
        found[name] for name in ("untitled", "unscoped", "unlabelled", "figures", "names")
    )
    assert len(found["ids"]) == len(set(found["ids"])) and all(found["links"])
    levels = found["levels"]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_page_has_labels_titles_scopes_and_unique_ids(browser):
    found = browser.run(STRUCTURE)
    check_structure(found)
    assert len(found["links"]) == 8  # to the content, and to each part


@pytest.fixture
def two_runs(browser, of_two):
    """The page of two runs, on a phone."""
    browser.open(of_two, 390, 844)
    return browser


def test_page_of_two_runs_has_unique_ids_and_fits_a_phone(two_runs):
    assert two_runs.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    structure = two_runs.run(STRUCTURE)
    check_structure(structure)
    ids = {"run1", "run2", "run1-comparison", "run2-comparison"}
    assert len(structure["links"]) == 1 + 2 * 8 and ids <= set(structure["ids"])


def test_tables_of_two_runs_are_sorted_independently(two_runs):
    two_runs.click("#run1-comparison th:nth-child(2) button")
    assert systems_in(two_runs, "#run1-comparison table") == [LONG_NAME, "base"]
    assert systems_in(two_runs, "#run2-comparison table") == ["base", "own"]


@pytest.mark.parametrize(
    ("form", "sets", "scores"),
    [(0, 1, ["sentence BLEU"]), (1, 2, ["sentence BLEU", "chrF"])],
)
def test_explorers_of_two_runs_filter_their_sentences(two_runs, form, sets, scores):
    options = f"[...document.forms[{form}].elements.score.options]"
    assert two_runs.run(f"{options}.map((option) => option.textContent)") == scores
    prefix, other = f"run{form + 1}-", f"run{2 - form}-"
    data = json.loads(two_runs.run(f"document.getElementById('{prefix}data').textContent"))
    assert len(data["sets"]) == sets and count(two_runs, prefix) == 40
    first, second = data["sets"][0]["scores"]["bleu"]
    choose(two_runs, {"way": "down"}, form)
    losses = sum(after < before for before, after in zip(first, second, strict=True))
    assert 0 < count(two_runs, prefix) == losses < 40 == count(two_runs, other)


def test_more_button_of_one_run_leaves_the_other_explorer(two_runs):
    system = "document.forms[0].elements.a.selectedOptions[0].textContent"
    assert two_runs.run(system) == LONG_NAME
    shown = (
        "['run1-', 'run2-'].map((prefix) => document.getElementById(prefix +"
        " 'results').children.length)"
    )
    assert two_runs.run(shown) == [20, 20]
    two_runs.click("#run1-more")
    assert two_runs.run(shown) == [40, 20]
