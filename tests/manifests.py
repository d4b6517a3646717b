"""Write the manifest and best.json of a run by hand; read and change JSON files as plain values."""

import copy
import json
from functools import reduce

from nmtkit.settings import PrepSettings
from nmtkit.text.side import RULES


def read_json(path):
    """Return the value in a JSON file."""
    return json.loads(path.read_text("utf-8"))


def write_json(path, value):
    """Write a plain value as a JSON file."""
    path.write_text(json.dumps(value), "utf-8")


def edit(path, old, new):
    """Replace every occurrence of a text in a file."""
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


def parts_with_paths(value, items=None):
    """Yield every part of a JSON value after its path (a tuple of keys and indices).

    Args:
        items: look only at the first N items of each list.
    """
    inside = {}
    if isinstance(value, dict):
        inside = value
    elif isinstance(value, list):
        inside = dict(enumerate(value[:items]))
    for key, part in inside.items():
        yield (key,), part
        for path, inner in parts_with_paths(part, items):
            yield (key, *path), inner


def with_change(values, path, new=...):
    """Return a copy of a JSON value with a new part at a path; ... removes the part."""
    values = copy.deepcopy(values)
    *above, last = path
    parent = reduce(lambda part, key: part[key], above, values)
    if new is ...:
        del parent[last]
    else:
        parent[last] = new
    return values


def text_set(name, split, lines, references=1):
    """One set of a manifest."""
    counts = {"src_tokens": 0, "src_unknown": 0, "tgt_tokens": 0, "tgt_unknown": 0}
    return {"name": name, "split": split, "lines": lines, "references": references, **counts}


def write_manifest(prep, sets, settings=None, **values):
    """Write prep/manifest.json of sets (name, split, lines, references); `values` win."""
    usual = {
        "format": 1,
        "dataset": "mine",
        "src": "en",
        "tgt": "de",
        "preset": "base",
        "source": {},
        "settings": PrepSettings.model_validate(settings or {}).model_dump(),
        "sets": [text_set(*one) for one in sets],
        "vocabulary": {"shared": True, "src": 100, "tgt": 100},
        "corpus": {},
        "cleaning": {
            "pairs_in": 1,
            "pairs_kept": 1,
            "dropped": {},
            "changed": {"src": {}, "tgt": {}},
        },
        "files": {},
        "inputs": {},
        "tools": RULES,
        "speed": [],
        "jobs": 1,
        "fingerprint": "f1",
    }
    write_json(prep / "manifest.json", {**usual, **values})


def write_best(folder, checkpoint):
    """Write best.json of a system: it names a checkpoint."""
    best = {
        "step": int(checkpoint.removeprefix("step-")),
        "checkpoint": checkpoint,
        "metric": "dev_loss",
        "dev_loss": 1.0,
        "dev_bleu": None,
    }
    write_json(folder / "best.json", best)
