"""Run the commands of two documents and compare their output, except numbers, times and bars.

Trainings have two updates and the demo corpus has a few lines, so of translations only the number
of lines is compared.
"""

import re
import shlex

import pytest
import torch
from typer.testing import CliRunner

from nmtkit import demo
from nmtkit.cli import app
from tests.docs.pages import ROOT, sessions, text_of
from tests.docs.user_files import write_user_files

SHORT = [
    part
    for value in (
        "train.max_steps=2",
        "train.log_every=1",
        "train.dev_sentences=2",
        "search.max_length_a=0",
        "search.max_length_b=2",
    )
    for part in ("--set", value)
]
TEXT = re.compile(r"(nmtkit: {3}(?:source {6}|reference {3}|translation )).*")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Use a demo corpus of a few lines, one thread, and an empty folder."""
    generate = demo.generate
    monkeypatch.setattr(
        demo,
        "generate",
        lambda folder, size, seed: generate(folder, size=60, dev=12, test=12, seed=seed),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NMTKIT_RUN", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def masked(line):
    """Return a line without what depends on the machine or the corpus."""
    line = TEXT.sub(r"\1", line)
    line = re.sub(r"device cpu \(.*?\), ", "device cpu, ", line)
    line = re.sub(r"bfloat16|(?:oneDNN |default )?float32(?: products)?(?=,|$)", "#", line)
    line = re.sub(
        r"[█▉▊▋▌▍▎▏]+|fingerprint \w+|commit \w+|, [\d,]+ unknown source subwords"
        r"|\b(seconds?|threads?|sentences?)\b",
        "",
        line,
    )
    line = re.sub(r"\d+(?:[,.]\d+)*(?:e-\d+)?%?|–", "#", line)
    line = re.sub(r"\[#,? ?#\]|(?:#[hm] )*#s\b", "#", line)
    return re.sub(r"[\s#=-]+", " ", line).strip()


def run(command):
    """Run a command, which may be `head … | nmtkit …`; return the lines of its output."""
    first, _, second = command.partition(" | ")
    stdin = None
    if second:
        head, option, count, path = shlex.split(first)
        assert (head, option) == ("head", "-n")
        with open(path, encoding="utf-8") as file:
            stdin = "".join(file.readlines()[: int(count)])
    program, *arguments = shlex.split(second or first)
    assert program == "nmtkit"
    cut = SHORT if arguments[0] == "train" and "train.max_stepps=9" not in arguments else []
    result = CliRunner().invoke(app, arguments + cut, input=stdin)
    assert result.exit_code == (
        2 if "did you mean" in result.output or "nothing was written" in result.output else 0
    ), result.output
    return result.stdout.splitlines() if second else result.output.splitlines()


def compare(page):
    """Run a page's commands one after the other; assert that their output is known."""
    blocks = sessions(text_of(ROOT / page))
    assert blocks
    for block in blocks:
        printed = run(block.command)
        if " | " in block.command:
            shown = [line for line in block.output if not line.startswith("nmtkit: ")]
            assert len(printed) == len(shown)
            continue
        shown = [line for line in block.output if line.strip() not in {"", "…"}]
        known = set(map(masked, printed))
        unknown = [line for line in shown if masked(line) not in known]
        assert not unknown, "\n".join([block.command, *unknown, "printed:", *printed])


def test_page_on_own_files_shows_the_output_of_its_commands(tmp_path):
    write_user_files(tmp_path)
    compare("nmtkit/prep/README.md")


def test_tour_shows_the_output_of_its_commands():
    compare("recipes/tour.md")


def test_mask_hides_numbers_and_times_and_keeps_words():
    assert masked("step 50/1,500: loss 2.5, 1m 03s left") == masked("step 2/2: loss 7.25, 0s left")
    assert masked("a  84.78 [81.79, 87.07]  93") == masked("a  – [–, –]  9")
    assert masked("lr 0.000237, 3m 19s left") == masked("lr 4.74e-06, 4s left")
    assert masked("dropped: empty  1") != masked("dropped: ratio  1")
