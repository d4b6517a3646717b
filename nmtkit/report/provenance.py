"""Where a run's numbers come from: corpus, commits, seeds, settings that differ between systems,
and the history of its stages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nmtkit import console, files
from nmtkit.errors import DataError
from nmtkit.records import Manifest
from nmtkit.report.gathered import Gathered, Remark
from nmtkit.score.translations import described, unlike_searches
from nmtkit.tables.table import Column, Table

MOST_CALLS = 200
"""Calls of stages that are listed, the latest ones."""


def corpus(manifest: Manifest) -> Table:
    """The sets of the prepared corpus."""
    columns = [
        Column("name", "set", left=True),
        Column("split", "split", left=True),
        Column("lines", "lines"),
        Column("references", "references"),
    ]
    columns += [Column("src_tokens", "source subwords"), Column("tgt_tokens", "target subwords")]
    rows = [[getattr(one, column.key) for column in columns] for one in manifest.sets]
    notes = [f"fingerprint of the training data: {manifest.fingerprint}"]
    if manifest.cleaning.dropped:
        notes.append(
            "training pairs left out: "
            + ", ".join(
                f"{why} {count['pairs']:,}" for why, count in manifest.cleaning.dropped.items()
            )
        )
    return Table("corpus", "Prepared corpus", columns, rows, notes)


def settings(found: Gathered, same: bool = False) -> Table:
    """The settings of the trainings, a column a system: those in which not all are alike, or
    (`same`) the others, in one column.
    """
    flat = {system.name: _flat(system.config) for system in found.systems}
    keys = list(dict.fromkeys(key for one in flat.values() for key in one))
    values = {key: [one.get(key) for one in flat.values()] for key in keys}
    alike = {key for key, own in values.items() if all(value == own[0] for value in own)}
    if same:
        columns = [
            Column("setting", "setting", left=True),
            Column("value", "all systems", left=True),
        ]
        return Table(
            "same",
            "Settings that all systems share",
            columns,
            [[key, _said(values[key][0])] for key in keys if key in alike],
        )
    columns = [
        Column("setting", "setting", left=True),
        *(Column(name, name, left=True) for name in flat),
    ]
    rows = [[key, *map(_said, values[key])] for key in keys if key not in alike]
    return Table(
        "settings",
        "Settings in which the systems differ",
        columns,
        rows,
        ["–: a setting that the system's variant does not have"],
    )


def searches(found: Gathered) -> list[Remark]:
    """In what the searches of a set's translations were not alike, a remark a set."""
    said = []
    for set_name, result in found.scores.items():
        folders = {name: found.run.system(name).translation(set_name) for name in result.names}
        try:
            unlike = unlike_searches(set_name, folders)
        except DataError:  # a damaged meta.json
            continue
        if unlike:
            said.append(Remark(f"{unlike.text}.", ", then ".join(unlike.commands)))
    return said


def systems(found: Gathered) -> Table:
    """Of each system its variant, seed, and the checkpoint that each set was translated with."""
    columns = [
        Column("system", "system", left=True),
        Column("variant", "variant", left=True),
        Column("seed", "seed"),
    ]
    columns += [Column(name, f"checkpoint for {name}", left=True) for name in found.scores]
    rows: list[list[Any]] = []
    for system in found.systems:
        used: list[str | None] = []
        for set_name in found.scores:
            try:
                meta = described(found.run.system(system.name).translation(set_name))
                used.append(
                    ", ".join(one.name for one in meta.checkpoints) + f" on {meta.machine}"
                    if meta.checkpoints
                    else None
                )
            except DataError:
                used.append(None)
        rows.append([system.name, system.config.get("variant"), system.seed, *used])
    return Table("systems", "Systems", columns, rows)


def calls(found: Gathered) -> list[dict[str, Any]]:
    """The lines of history.jsonl but those of reports, oldest first; lines that are none are
    passed over.
    """
    path = found.run.path / "history.jsonl"
    records = []
    for line in files.text_lines(path) if path.is_file() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("stage") != "report":
            records.append(record)
    return records


def commits(records: list[dict[str, Any]]) -> Table:
    """Which commits of nmtkit each stage was run with."""
    columns = [
        Column("stage", "stage", left=True),
        Column("calls", "calls"),
        Column("failed", "ended with an error or stopped"),
    ]
    columns += [
        Column("commits", "commits of nmtkit", left=True),
        Column("devices", "devices", left=True),
    ]
    rows: list[list[Any]] = []
    for stage in dict.fromkeys(record.get("stage") for record in records):
        own = [record for record in records if record.get("stage") == stage]
        of = [
            list(dict.fromkeys(str(record[key]) for record in own if record.get(key)))
            for key in ("commit", "device")
        ]
        rows.append(
            [
                stage,
                len(own),
                sum(record.get("exit") != 0 for record in own),
                *(", ".join(one) or None for one in of),
            ]
        )
    notes = (
        ["-dirty: the checkout had changes that no commit has"]
        if any("-dirty" in str(row[3]) for row in rows)
        else []
    )
    return Table("commits", "Program", columns, rows, notes)


def history(records: list[dict[str, Any]]) -> Table:
    """The calls of stages."""
    columns = [
        Column("start", "start", left=True),
        Column("seconds", "took", left=True),
        Column("exit", "exit"),
    ]
    columns += [
        Column("commit", "commit", left=True),
        Column("seed", "seed"),
        Column("command", "command", left=True),
    ]
    rows = []
    for record in records[-MOST_CALLS:]:
        command = "nmtkit " + " ".join(map(str, record.get("argv") or [record.get("stage")]))
        rows.append(
            [
                record.get("start"),
                _took(record),
                record.get("exit"),
                record.get("commit"),
                record.get("seed"),
                command,
            ]
        )
    notes = (
        [f"the last {MOST_CALLS} of {len(records):,} calls; all of them are in history.jsonl"]
        if len(records) > MOST_CALLS
        else []
    )
    return Table("history", "Calls of stages", columns, rows, notes)


def _took(record: Mapping[str, Any]) -> str | None:
    try:
        start, end = (
            datetime.strptime(str(record.get(key)), "%Y-%m-%dT%H:%M:%S%z")
            for key in ("start", "end")
        )
    except ValueError:
        return None
    return console.duration((end - start).total_seconds())


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
        )
    return flat


def _said(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return "(empty)" if value in ("", []) else None if value is None else str(value)
