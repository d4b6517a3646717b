"""A small scored run with logs, findings and texts full of markup, and a reader of its report."""

import copy
import json
import shutil
from html.parser import HTMLParser

import pytest

from nmtkit.analyze.analysis import Finding
from nmtkit.records import FindingInputs
from nmtkit.report import stage
from nmtkit.run import Run, StageCall
from nmtkit.score.stage import score
from nmtkit.tables import drawing
from nmtkit.tables.table import Column, Estimate, Table, text_column
from tests.fast_figures import cached_figures
from tests.score.conftest import FakeRun, write

SCRIPT = "<script>alert('x')</script> & </script> <!-- \"ein\" <b>Hund</b>"
FIGURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="90pt" height="50pt" viewBox="0 0 90 50"><g'
    ' id="a"><path id="m" d="M 0 0 L 9 9"/></g></svg>'
)


@pytest.fixture(scope="package", autouse=True)
def remembered_figures():
    """Each figure is drawn once."""
    with cached_figures():
        yield


@pytest.fixture
def without_figures(monkeypatch):
    """The report draws no figures, which takes nine tenths of the time."""
    monkeypatch.setattr(drawing, "available", lambda: False)


class Page(HTMLParser):
    """A page as a browser reads it.

    Attributes:
        text: the text outside scripts and styles.
        elements: (tag, attributes) of each element.
        datas: the explorer's data (JSON) of each run.
    """

    def __init__(self, html):
        super().__init__()
        self.elements, self.pieces, self.datas, self._inside = [], [], [], None
        self.feed(html)
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs)) if tag in {"script", "style"} else None
        if ("type", "application/json") in attrs:
            self.datas.append("")

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.pieces.append(data)
        elif self._inside[1].get("type") == "application/json":
            self.datas[-1] += data

    @property
    def data(self):
        """The explorer's data of the only run."""
        (data,) = self.datas
        return data

    def all(self, tag):
        """Return the attributes of every element with this tag."""
        return [attributes for name, attributes in self.elements if name == tag]


class ReportedRun(FakeRun):
    """A fake run with logs of trainings and findings of analyses."""

    def log(self, system):
        """Write a log of two validations, 5 updates and half a minute each."""
        lines = []
        for i in (1, 2):
            train = {"nll": 5.0 - i, "seconds": 30.0, "updates": 5, "epoch": float(i)}
            dev = {"dev_loss": 4.0 - i, "dev_bleu": 10.0 * i, "signature": "s"}
            lines += [
                json.dumps({"step": 5 * i, "kind": kind, **values})
                for kind, values in (("train", train), ("dev", dev))
            ]
        write(self.run.system(system).path / "metrics.jsonl", lines)

    def finding(
        self,
        name,
        title,
        figure=FIGURE,
        rows=3,
        made_from=None,
        facts=None,
        attachments=None,
        table=None,
        paper=None,
        text=None,
    ):
        """Write a finding of an analysis; by default with a table of `rows` rows."""
        columns = [text_column("system"), Column("value", "value", interval=True)]
        values = [[f"s{i}", Estimate(float(i), i - 0.5, i + 0.5)] for i in range(rows)]
        table = table or Table(name, f"The table of {name}", columns, values, ["a note"])
        facts = facts or {"seed": 1}
        text = text or f"How {name} is read."
        finding = Finding(table, text, figure, facts=facts, paper=paper, name=name, title=title)
        finding.attachments.update(attachments or {})
        inputs = FindingInputs(**(made_from or {"systems": ["base", "own"], "files": {}}))
        finding.write(self.run.path / "analyze" / name, inputs)

    def page(self, **options):
        """Write the report and read its page."""
        return Page(stage.report(self.run, **options).read_text("utf-8"))


def make(path, sets=("test",), systems=(("base", 0.3), ("own", 0.1)), markup=True):
    """Make a scored run with these systems, of shares of wrong words.

    Args:
        markup: the third line of the source, and of the last system's translation of the first
            set, is SCRIPT.
    """
    made = ReportedRun(path, sets=sets)
    for name, share in systems:
        folder = made.add(name, share, seed=1, variant=name)
        made.log(name)
    if markup:
        for text in (
            folder / "translate" / sets[0] / "hyp.txt",
            path / "prep" / "text" / f"{sets[0]}.src",
        ):
            lines = text.read_text("utf-8").splitlines()
            lines[2] = SCRIPT
            write(text, lines)
    call = StageCall(
        stage="train",
        argv=["train"],
        version="0.1.0",
        commit="abc1234-dirty",
        python="3.12.1",
        device="cpu",
        seed=1,
        start="2026-01-01T10:00:00+0000",
        end="2026-01-01T10:03:20+0000",
        exit=0,
    )
    write(made.run.history, [json.dumps(call.model_dump()), "a damaged line"])
    score(made.run, by_length=True, buckets="10", resamples=20, trials=20)
    return made


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A scored run, made once."""
    return make(tmp_path_factory.mktemp("reported") / "run")


@pytest.fixture
def reported(once, tmp_path, capsys):
    """A copy of the scored run."""
    made = copy.copy(once)
    made.run = Run(shutil.copytree(once.run.path, tmp_path / "run"))
    made.scores = made.run.path / "score" / "test"
    capsys.readouterr()
    return made


@pytest.fixture
def second(tmp_path, reported, capsys):
    """Another run, with an untranslated system; both have a finding `cost`, and share names."""
    systems = ("base", 0.3), ("own", 0.2), ("third", 0.1)
    made = make(tmp_path / "second run", systems=systems, markup=False)
    made.add("later", 0.5, sets=[])
    for run in (made, reported):
        run.finding("cost", "cost")
    capsys.readouterr()
    return made
