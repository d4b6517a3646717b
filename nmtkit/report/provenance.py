"""Where the numbers of a run come from: corpus, commits, seeds, settings that differ between
systems, and the history of its stages.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from nmtkit.records import Manifest
from nmtkit.report.contents import Contents
from nmtkit.run import StageCall
from nmtkit.tables.table import Column, Table, text_column, text_columns
from nmtkit.toml import differing


def corpus(manifest: Manifest) -> Table:
    """Return the sets of the prepared corpus."""
    columns = [
        text_column("name", "set"),
        text_column("split"),
        Column("lines", "lines"),
        Column("references", "references"),
        Column("src_tokens", "source subwords"),
        Column("tgt_tokens", "target subwords"),
    ]
    rows = [[getattr(text_set, column.key) for column in columns] for text_set in manifest.sets]
    notes = [f"fingerprint of the training data: {manifest.fingerprint}"]
    if dropped := manifest.cleaning.dropped:
        reasons = [f"{reason} {count['pairs']:,}" for reason, count in dropped.items()]
        notes.append("training pairs left out: " + ", ".join(reasons))
    if repeats := manifest.repeats:
        counts = f"duplicates {repeats.duplicates:,}, source = target {repeats.identical:,}"
        notes.append(f"repeated training pairs: {counts}")
        notes += [
            f"pairs of {text.name} in the training text before cleaning: {text.exact:,} exactly,"
            f" {text.normalised:,} without case and punctuation"
            for text in repeats.overlap
        ]
    notes += [
        f"lines of {text.name} ({side}) without a letter of their language's script: {count:,}"
        for text in manifest.sets
        for side, count in text.foreign.items()
    ]
    return Table("corpus", "Prepared corpus", columns, rows, notes)


def settings(contents: Contents) -> tuple[Table, Table]:
    """Return the settings of training in which the systems differ, one column a system, and the
    settings that all systems share.
    """
    names = [system.name for system in contents.systems]
    flat = [system.settings for system in contents.systems]
    different = differing(flat)
    shared = flat[0].items() if flat else ()
    return Table(
        "settings",
        "Settings in which the systems differ",
        text_columns("setting", *names),
        [[key, *(_shown(of.get(key)) for of in flat)] for key in different],
        ["–: a setting that the system's variant does not have"],
    ), Table(
        "same",
        "Settings that all systems share",
        [text_column("setting"), text_column("value", "all systems")],
        [[key, _shown(value)] for key, value in shared if key not in different],
    )


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if value in ("", []):
        return "(empty)"
    return None if value is None else str(value)


def systems(contents: Contents) -> Table:
    """Return the variant and seed of each system, and the checkpoint that translated each set."""
    columns = [text_column("system"), text_column("variant"), Column("seed", "seed")]
    columns += [text_column(name, f"checkpoint for {name}") for name in contents.scores]
    rows = []
    for system in contents.systems:
        row = [system.name, system.settings.get("variant"), system.seed]
        for set_name in contents.scores:
            meta = contents.translations[set_name].get(system.name)
            names = ", ".join(used.name for used in meta.checkpoints) if meta else ""
            row.append(f"{names} on {meta.hardware.get('name')}" if meta and names else None)
        rows.append(row)
    return Table("systems", "Systems", columns, rows)


def history(records: list[StageCall]) -> Table:
    """Return the calls of stages, the latest call first."""
    columns = [
        text_column("start"),
        Column("seconds", "took, seconds"),
        Column("exit", "exit"),
        *text_columns("commit", "device"),
        Column("seed", "seed"),
        text_column("command"),
    ]
    rows = []
    for call in reversed(records):
        command = shlex.join(["nmtkit", *(call.argv or [call.stage])])
        row = call.start, _seconds(call), call.exit, call.commit, call.device, call.seed, command
        rows.append(row)
    notes = ["commit: of nmtkit; -dirty: the checkout had changes that no commit has"]
    return Table("history", "Calls of stages", columns, rows, notes)


def _seconds(call: StageCall) -> int | None:
    try:
        start, end = datetime.fromisoformat(call.start), datetime.fromisoformat(call.end or "")
        return round((end - start).total_seconds())
    except (TypeError, ValueError):  # damaged, or still running
        return None
