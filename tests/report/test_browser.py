"""The page in a real browser: nothing loaded, nothing complained of; sorting, filters, keyboard,
contrast, phone, print, and life without scripts.
"""

import json
import os

import pytest

from nmtkit.analyze.attention import SentenceAttention, SystemAttention
from nmtkit.report import explorer, page
from nmtkit.report.contents import read_contents
from nmtkit.report.texts import read_texts
from nmtkit.run import Run

from .browser import Browser, find
from .conftest import SCRIPT, make

CONTRAST = """(() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const back = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("svg, script, noscript") || !element.checkVisibility()) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const under = back(element);
    const [a, b] = [light(over(parse(getComputedStyle(element).color), under)), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    found.push([ratio, element.tagName + "." + element.className + ": " + element.textContent.trim().slice(0, 40)]);
  }
  return found;
})()"""
ABOUT = {"title": "A small run", "commit": "abc", "made": "today", "digest": "0"}
STOPS = "a[href], button, select, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of a small run with two sets, findings, markup in its texts, and attention."""
    made = make(tmp_path_factory.mktemp("browser") / "run", sets=("test", "other"))
    made.finding("cost", "cost")
    made.finding("gates", "gates", rows=40)
    made.finding("convergence", "curves")
    found = read_contents(made.run)
    texts = [read_texts(found, name) for name in found.scores]
    weights = {
        4: SentenceAttention(
            ["ein", "</s>"], ["a", "<b>", "</s>"], [[0.9, 0.1], [0.5, 0.5], [0.0, 1.0]]
        )
    }
    again = {
        4: SentenceAttention(["ein", "</s>"], ["c", "</s>"], [[0.2, 0.8], [0.3, 0.7]]),
        6: weights[4],
    }
    attention = [
        SystemAttention(system=system, what="last but one", set_name="test", sentences=sentences)
        for system, sentences in (("own", weights), ("base", again))
    ]
    path = made.run.path / "index.html"
    path.write_text(
        page.render(
            [page.Part(found, texts, explorer.step_of(texts), attention)],
            **ABOUT,
        ),
        "utf-8",
    )
    return path


@pytest.fixture(scope="module")
def of_two(written):
    """The page of that run and of another, without attention."""
    made = make(
        written.parents[1] / "other-run",
        systems=(("base", 0.3), ("a-system-with-a-long-name-of-its-own", 0.05)),
        markup=False,
    )
    parts = []
    for number, run in enumerate((Run(written.parent), made.run), 1):
        found = read_contents(run)
        texts = [read_texts(found, name) for name in found.scores]
        parts.append(page.Part(found, texts, explorer.step_of(texts), number=number))
    path = made.run.path / "index.html"
    path.write_text(page.render(parts, **ABOUT), "utf-8")
    return path


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


def column(browser, place, table="#comparison table"):
    return browser.run(
        f"[...document.querySelector('{table}').tBodies[0].rows].map((r) =>"
        f" r.cells[{place}].textContent)"
    )


def set_field(browser, name, value, form=0):
    """As a person's choice: the value, then the event."""
    given = json.dumps(value)
    code = (
        f"const f = document.forms[{form}].elements[{json.dumps(name)}]; f.type === 'checkbox' ?"
        f" (f.checked = {given}) : (f.value = {given});"
    )
    code += "f.dispatchEvent(new Event('input', {bubbles: true}));"
    browser.run(f"(() => {{ {code} }})()")


def count(browser, prefix=""):
    return int(
        browser.run(f"document.getElementById('{prefix}count').textContent").split(" of ")[0]
    )


def test_nothing_is_loaded_and_nothing_complained_of(browser, written):
    assert {url.partition(",")[0] for url in browser.requests} <= {f"file://{written}", "data:"}
    browser.run("console.error('this is seen')")
    assert browser.errors and "this is seen" in browser.errors.pop()


def test_tables_sort_by_a_click(browser):
    state = "document.querySelectorAll('#comparison th')[1].getAttribute('aria-sort')"
    assert column(browser, 0) == ["base", "own"]
    for expected, order in (
        ("descending", ["own", "base"]),
        ("ascending", ["base", "own"]),
        (None, ["base", "own"]),
    ):
        browser.click("#comparison th:nth-child(2) button")
        assert (browser.run(state), column(browser, 0)) == (expected, order)
    browser.click(
        "#comparison th:nth-child(3) button"
    )  # the baseline has no difference: last, whichever way
    assert column(browser, 0) == ["own", "base"]
    browser.click("#comparison th:nth-child(3) button")
    assert column(browser, 0) == ["own", "base"]


def test_filters(browser):
    data = browser.run("JSON.parse(document.getElementById('data').textContent).sets[0]")
    base, own = data["scores"]["bleu"]
    deltas = [round(a - b, 6) for a, b in zip(own, base, strict=True)]
    assert count(browser) == 40
    set_field(browser, "least", "20")
    assert 0 < count(browser) == sum(abs(d) >= 20 for d in deltas) < 40
    set_field(browser, "way", "down")
    assert count(browser) == sum(d <= -20 for d in deltas)
    set_field(browser, "least", "0")
    set_field(browser, "way", "both")
    set_field(browser, "from", "10")
    set_field(browser, "to", "12")
    assert 0 < count(browser) == sum(10 <= n <= 12 for n in data["length"]) < 40
    set_field(browser, "from", "")
    set_field(browser, "to", "")
    set_field(browser, "order", "up")
    first = browser.run("document.querySelector('#results .where strong').textContent")
    assert first == f"Line {1 + deltas.index(max(deltas))}"
    browser.click("[name=words]")
    browser.type("ALERT('X')")
    assert count(browser) == 1 and "Line 3" in browser.run(
        "document.getElementById('results').textContent"
    )
    set_field(browser, "words", "")
    chosen = (
        "['a', 'b'].map((name) => document.forms[0].elements[name].selectedOptions[0].textContent)"
    )
    set_field(browser, "a", "0")
    set_field(browser, "b", "")
    before = browser.run(chosen)
    set_field(browser, "set", "1")
    assert before[1] == "nothing" and browser.run(chosen) == before  # what was compared stays
    set_field(browser, "a", "1")
    set_field(browser, "b", "0")
    assert (
        browser.run("document.querySelector('#results dd').textContent") != data["src"][0]
        and count(browser) == 40
    )


def test_more_sentences_by_a_click(browser):
    shown = "document.querySelectorAll('#results > li').length"
    assert browser.run(shown) == 20
    browser.click("#more")
    assert browser.run(shown) == 40 and browser.run("document.getElementById('more').hidden")
    assert browser.run("document.activeElement === document.querySelectorAll('#results > li')[20]")


def test_markup_in_texts_stays_text(browser):
    set_field(browser, "words", "<script>")
    texts = browser.run("[...document.querySelectorAll('#results dd')].map((e) => e.textContent)")
    assert texts[0] == SCRIPT == texts[-1]
    assert browser.run("document.querySelectorAll('main script, main b').length") == 0
    for how in ("ref", "none", "other"):
        set_field(browser, "mark", how)
        assert (
            browser.run("[...document.querySelectorAll('#results dd')].at(-1).textContent")
            == SCRIPT
        )
        assert (browser.run("document.querySelectorAll('#results mark').length") > 0) == (
            how != "none"
        )


def test_attention_on_a_click(browser):
    """Each system's beside a button of its own; a sentence has those that read it."""
    set_field(browser, "attended", True)
    assert count(browser) == 2
    assert browser.run(
        "[...document.querySelectorAll('#results > li')].map((e) =>"
        " e.querySelectorAll('.look').length)"
    ) == [2, 1]
    browser.click(".look + .look")
    cells = browser.run(
        "[...document.querySelectorAll('.attention tr')].map((r) => [...r.cells].map((c) =>"
        " c.textContent))"
    )
    assert cells == [["", "ein", "</s>"], ["c", "20", "80"], ["</s>", "29", "69"]]
    assert browser.run("document.querySelector('.attention caption').textContent").startswith(
        "Attention of base in per cent"
    )
    browser.click(".look + .look")
    browser.run("document.querySelectorAll('.attention').forEach((e) => e.remove())")
    browser.click(".look")
    assert browser.run("document.querySelector('.look').getAttribute('aria-expanded')") == "true"
    cells = browser.run(
        "[...document.querySelectorAll('.attention tr')].map((r) => [...r.cells].map((c) =>"
        " c.textContent))"
    )
    assert cells == [
        ["", "ein", "</s>"],
        ["a", "91", "11"],
        ["<b>", "51", "51"],
        ["</s>", "", "100"],
    ]
    assert min(browser.run(CONTRAST))[0] >= 4.5
    browser.click(".look")
    assert browser.run("document.querySelector('.look').getAttribute('aria-expanded')") == "false"
    assert not browser.run("document.querySelector('.attention').checkVisibility()")


def test_everything_is_reached_by_keyboard(browser):
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
    assert (
        browser.run("document.querySelector('#comparison th').getAttribute('aria-sort')")
        == "ascending"
    )
    browser.run("document.querySelector('#finding-gates summary').focus()")
    browser.press(" ", "Space")
    assert browser.run("document.querySelector('#finding-gates details').open")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_of_all_text(browser, written, dark):
    browser.open(written, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((e) => (e.open = true))")
    ratios = sorted(browser.run(CONTRAST))
    assert len(ratios) > 300 and ratios[0][0] >= 4.5, ratios[:5]
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark
    browser.run("document.querySelector('h1').style.color = '#888888'")
    assert min(browser.run(CONTRAST))[0] < 5.6  # a grey is measured as one


def test_a_phone_scrolls_one_way(browser, written):
    browser.open(written, 390, 844)
    browser.run("document.querySelectorAll('details').forEach((e) => (e.open = true))")
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    assert (
        browser.run("document.querySelector('#comparison .scroll').tabIndex") == 0
    )  # a wide table moves inside its own frame


def test_without_scripts_all_but_the_explorer_is_there(browser, written):
    browser.scripting(False)
    try:
        browser.open(written)
        # Scripts of the page are off; what the test asks is not.
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
        browser.scripting(True)


def test_print(browser, tmp_path):
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
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"


STRUCTURE = """({
  untitled: [...document.querySelectorAll('table')].filter((t) => !t.caption || !t.caption.textContent.trim()).length,
  unscoped: [...document.querySelectorAll('th')].filter((t) => !t.scope).length,
  unlabelled: [...document.querySelectorAll('input, select')].filter((e) => !e.labels.length).length,
  figures: [...document.querySelectorAll('svg')].filter((e) => e.getAttribute('role') !== 'img' || !e.getAttribute('aria-label')).length,
  levels: [...document.querySelectorAll('h1, h2, h3, h4')].map((e) => Number(e.tagName[1])),
  ids: [...document.querySelectorAll('[id]')].map((e) => e.id),
  links: [...document.querySelectorAll('a[href^="#"]')].map((e) => document.getElementById(e.hash.slice(1)) !== null),
  names: [...document.querySelectorAll('[aria-labelledby]')].filter((e) => !document.getElementById(e.getAttribute('aria-labelledby'))).length,
})"""


def check_structure(found):
    assert (
        found["untitled"],
        found["unscoped"],
        found["unlabelled"],
        found["figures"],
        found["names"],
    ) == (0, 0, 0, 0, 0)
    assert len(found["ids"]) == len(set(found["ids"])) and all(found["links"])
    assert found["levels"].count(1) == 1 and all(
        b - a <= 1 for a, b in zip(found["levels"], found["levels"][1:], strict=False)
    )


def test_structure(browser):
    found = browser.run(STRUCTURE)
    check_structure(found)
    assert len(found["links"]) == 8  # to the content, and to each part


def test_runs_of_one_page_keep_apart(browser, of_two):
    browser.open(of_two, 390, 844)
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    found = browser.run(STRUCTURE)
    check_structure(found)
    assert len(found["links"]) == 1 + 2 * 8 and {
        "run1",
        "run2",
        "run1-comparison",
        "run2-comparison",
    } <= set(found["ids"])
    named = "a-system-with-a-long-name-of-its-own"
    browser.click("#run2-comparison th:nth-child(2) button")
    assert column(browser, 0, "#run2-comparison table") == [named, "base"] and column(
        browser, 0, "#run1-comparison table"
    ) == ["base", "own"]
    first, second = (
        [
            one["scores"]["bleu"]
            for one in json.loads(
                browser.run(f"document.getElementById('run{n}-data').textContent")
            )["sets"]
        ]
        for n in (1, 2)
    )
    assert (len(first), len(second)) == (2, 1) and count(browser, "run1-") == count(
        browser, "run2-"
    ) == 40
    for form, (bleus, prefix) in enumerate(((first, "run1-"), (second, "run2-"))):
        set_field(browser, "way", "down", form)
        assert (
            0
            < count(browser, prefix)
            == sum(own < base for base, own in zip(*bleus[0], strict=True))
            < 40
        )
    assert browser.run("document.forms[1].elements.a.selectedOptions[0].textContent") == named
    set_field(browser, "way", "both", 1)
    shown = (
        "['run1-', 'run2-'].map((prefix) => document.getElementById(prefix +"
        " 'results').children.length)"
    )
    before = browser.run(shown)
    browser.click("#run2-more")
    assert browser.run(shown) == [before[0], 40]
