"""Every page: links lead somewhere, commands are understood, and settings exist."""

import re

import pytest
from typer.main import get_command

from nmtkit import settings
from nmtkit.analyze import ANALYSES
from nmtkit.cli import app
from nmtkit.cli.command import refuse_without_effect
from nmtkit.models.variants import VARIANTS, load_variant
from tests.docs.pages import PAGES, ROOT, anchors, calls, links, sessions, text_of

COMMANDS = get_command(app).commands
FILES = {"de", "en", "docids", "log", "sbatch", "bin", "idx", "spans.bin", "txt", "trees"}
"""Endings of files that are called train."""
DELIBERATE = {"train.max_stepps=9"}
"""What the tour shows to be refused."""
PLACEHOLDER = "my_package.my_file:MyAnalysis"
"""A class that exists in no package: the help names it as an example."""
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_links_lead_somewhere(page):
    dead = []
    for link in links(text_of(page)):
        place, _, anchor = link.partition("#")
        if re.match("[a-z]+:", link):
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in anchors(text_of(target))):
            dead.append(link)
    assert not dead


@every_page
def test_commands_are_understood(page):
    for words in calls(text_of(page)):
        if words and words[0] == "--version":
            continue
        name, command = words[0], COMMANDS[words[0]]
        arguments = [word for word in words[1:] if word not in {"…", "--help"}]
        if name == "analyze" and arguments and arguments[0] != PLACEHOLDER:
            name, command, arguments = command.resolve_command(None, arguments)
        context = command.make_context(name, arguments)
        refuse_without_effect(context)
        values = context.params
        for assignment in {*(values.get("assignments") or [])} - DELIBERATE:
            check_setting(assignment, page)


@every_page
def test_settings_that_are_named_exist(page):
    for name in re.findall(
        r"`((?:prep|train|model|search)\.[a-z_]+(?:=[^`\s|]*)?)`", text_of(page)
    ):
        if name.removeprefix("train.") not in FILES:
            check_setting(name, page)


def check_setting(assignment, page):
    """Assert that a named setting, with its value if it has one, exists.

    It exists in a section, in the settings of some variant, or in code on the page.
    """
    section, _, rest = assignment.partition(".")
    key, given, value = rest.partition("=")
    classes = (
        [load_variant(name).Settings for name in VARIANTS]
        if section == "model"
        else [settings.STAGES[section]]
    )
    having = [cls for cls in classes if key in cls.model_fields]
    if section == "model" and re.search(rf"^ +{key}: \w+ = ", text_of(page), re.M):
        return
    assert having, assignment
    if given and "…" not in value:
        values = settings.parse_set([assignment])[section]
        errors = []
        for cls in having:
            try:
                settings.build(cls, values, section)
                return
            except settings.ConfigError as error:
                errors.append(error)
        raise errors[0]


def test_every_analysis_has_its_section():
    assert set(ANALYSES) <= anchors(text_of(ROOT / "nmtkit" / "analyze" / "README.md"))


def test_files_that_pages_repeat_are_as_they_are():
    for toy in ("toy_recurrent.py", "toy_local.py"):
        text = f"```python\n{text_of(ROOT / 'tests' / toy)}```"
        assert text in text_of(ROOT / "nmtkit" / "models" / "README.md")


def test_the_first_page_leads_to_every_other():
    known = {
        (ROOT / link.partition("#")[0]).resolve()
        for link in links(text_of(ROOT / "README.md"))
        if ":" not in link
    }
    assert {page for page in PAGES if page != ROOT / "README.md"} <= known


def test_what_the_finders_find():
    page = "# A `b` c\n\n## A b c!\n[x](y.md#z) `[no](link)`\n\n"
    page += "    $ nmtkit prep demo --size 5  # why\n    nmtkit: run\n    \n    A=1 nmtkit train\n"
    page += "\n    cat x | nmtkit translate -\n"
    page += "    torchrun --nproc-per-node 4 -m -- nmtkit train --run a\n"
    assert links(page) == ["y.md#z"]
    assert anchors(page) == {"a-b-c", "a-b-c-1"}
    assert [(block.command, block.output) for block in sessions(page)] == [
        ("nmtkit prep demo --size 5  # why", ["nmtkit: run"])
    ]
    assert calls(page) == [
        ["prep", "demo", "--size", "5"],
        ["train"],
        ["translate", "-"],
        ["train", "--run", "a"],
    ]
