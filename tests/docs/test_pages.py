"""Check every page: link targets, commands and settings exist."""

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
"""Endings of files named train, which look like settings."""
REFUSED = {"train.max_stepps=9"}
"""A misspelt setting in the tour."""
PLACEHOLDER = "my_package.my_file:MyAnalysis"
"""The example in the help; the package does not exist."""
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_link_targets_exist(page):
    broken = []
    for link in links(text_of(page)):
        place, _, anchor = link.partition("#")
        if re.match("[a-z]+:", link):
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and anchor not in anchors(text_of(target))):
            broken.append(link)
    assert not broken


@every_page
def test_commands_and_their_settings_are_valid(page):
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
        for assignment in {*(values.get("assignments") or [])} - REFUSED:
            check_setting(assignment, page)


@every_page
def test_named_settings_exist(page):
    for name in re.findall(
        r"`((?:prep|train|model|search)\.[a-z_]+(?:=[^`\s|]*)?)`", text_of(page)
    ):
        if name.removeprefix("train.") not in FILES:
            check_setting(name, page)


def check_setting(assignment, page):
    """Assert that a setting exists, and that its value is valid, if the text has one.

    A setting of a model exists in the settings of a variant or in code on the page.
    """
    section, _, rest = assignment.partition(".")
    key, has_value, value = rest.partition("=")
    if section == "model" and re.search(rf"^ +{key}: \w+ = ", text_of(page), re.M):
        return
    classes = [settings.STAGES.get(section)]
    if section == "model":
        classes = [load_variant(name).Settings for name in VARIANTS]
    classes = [cls for cls in classes if key in cls.model_fields]
    assert classes, assignment
    if has_value and "…" not in value:
        values = settings.parse_set([assignment])[section]
        assert any(is_valid(cls, values, section) for cls in classes), assignment


def is_valid(cls, values, section):
    try:
        settings.build(cls, values, section)
    except settings.ConfigError:
        return False
    return True


def test_every_analysis_has_a_section():
    assert set(ANALYSES) <= anchors(text_of(ROOT / "nmtkit" / "analyze" / "README.md"))


def test_page_on_models_has_the_current_toy_models():
    for toy in ("toy_recurrent.py", "toy_local.py"):
        text = f"```python\n{text_of(ROOT / 'tests' / toy)}```"
        assert text in text_of(ROOT / "nmtkit" / "models" / "README.md")


def test_readme_links_to_every_other_page():
    linked = {
        (ROOT / link.partition("#")[0]).resolve()
        for link in links(text_of(ROOT / "README.md"))
        if ":" not in link
    }
    assert {page for page in PAGES if page != ROOT / "README.md"} <= linked


def test_links_anchors_sessions_and_calls_are_found_in_a_page():
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
