"""A small run as the other stages leave it: two systems translated and scored, a log, findings,
texts with markup in them.
"""

import copy
import json
import os
import shutil
from html.parser import HTMLParser

import pytest

from nmtkit.analyze.analysis import Finding
from nmtkit.records import FindingInputs
from nmtkit.report import stage
from nmtkit.run import Run, StageCall
from nmtkit.score.stage import score
from nmtkit.tables.table import Column, Estimate, Table, text_column
from tests.drawn import remembered
from tests.score.conftest import FakeRun, write

SCRIPT = "<script>alert('x')</script> & </script> <!-- \"ein\" <b>Hund</b>"
FIGURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="90pt" height="50pt" viewBox="0 0 90 50"><g'
    ' id="a"><path id="m" d="M 0 0 L 9 9"/></g></svg>'
)


@pytest.fixture(scope="package", autouse=True)
def remembered_figures():
    with remembered():
        yield


class Page(HTMLParser):
    """What a page says, read as a browser reads it: text outside scripts, elements with their
    attributes, the data of each run's explorer.
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
        """That of the only run."""
        (data,) = self.datas
        return data

    def all(self, tag):
        """The attributes of every element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]


class ReportedRun(FakeRun):
    """A fake run whose systems have logs, and which can keep findings."""

    def log(self, system):
        lines = []
        for i in (1, 2):
            train = {"nll": 5.0 - i, "seconds": 30.0, "updates": 5, "epoch": float(i)}
            dev = {"dev_loss": 4.0 - i, "dev_bleu": 10.0 * i, "signature": "s"}
            for kind, values in (("train", train), ("dev", dev)):
                lines.append(json.dumps({"step": 5 * i, "kind": kind, **values}))
        write(self.run.path / "systems" / system / "metrics.jsonl", lines)

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
    ):
        columns = [text_column("system"), Column("value", "value", interval=True)]
        values = [[f"s{i}", Estimate(float(i), i - 0.5, i + 0.5)] for i in range(rows)]
        table = table or Table(name, f"The table of {name}", columns, values, ["a note"])
        facts = facts or {"seed": 1}
        found = Finding(table, f"How {name} is read.", figure, facts=facts, name=name, title=title)
        found.attachments.update(attachments or {})
        inputs = FindingInputs(**(made_from or {"systems": ["base", "own"], "files": {}}))
        found.write(self.run.path / "analyze" / name, inputs)

    def page(self, **options):
        """Make the page and read it."""
        return Page(stage.report(self.run, **options).read_text("utf-8"))


def make(path, sets=("test",), systems=(("base", 0.3), ("own", 0.1)), markup=True):
    """A run with systems, scored; the third line of the last system's translation, and of the
    source, are full of markup.
    """
    made = ReportedRun(path, sets=sets)
    for number, (name, share) in enumerate(systems):
        folder = made.add(name, share, seed=1, variant=name)
        made.log(name)
        os.utime(folder / "config.toml", (number + 1, number + 1))
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
    """The run that tests begin with."""
    return make(tmp_path_factory.mktemp("reported") / "run")


@pytest.fixture
def reported(once, tmp_path, capsys):
    """A copy of it."""
    made = copy.copy(once)
    made.run = Run(shutil.copytree(once.run.path, tmp_path / "run"))
    capsys.readouterr()
    return made
