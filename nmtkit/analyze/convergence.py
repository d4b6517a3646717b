"""Analysis `convergence`: loss and dev BLEU of trainings side by side, and what it took each of them to reach the same BLEU."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nmtkit import console
from nmtkit.analyze.analysis import Finding
from nmtkit.analyze.shared.curves import Curves, read
from nmtkit.errors import ConfigError, DataError
from nmtkit.run import Run
from nmtkit.tables import figures
from nmtkit.tables.figures import Curve, Panel
from nmtkit.tables.table import Column, Table

SHARES = (0.5, 0.75, 0.9)
"""Of the best BLEU of all: levels, where none are given, beside the best of the weakest system, which all of them reach."""
INTERPOLATED, FIRST, NEVER, BEST = "interpolated", "by the first validation", "not reached", "best validation"
BLOCKS = " ▁▂▃▄▅▆▇█"
PLACES = 60


def parse_levels(given: str) -> list[float]:
    """BLEU levels from text such as "20,25,30", in rising order.

    Raises: ConfigError for what is no BLEU above 0 and up to 100.
    """
    found = set()
    for part in given.split(","):
        try:
            level = float(part)
        except ValueError:
            level = math.nan
        if not 0 < level <= 100:
            raise ConfigError(
                f"'{part.strip()}' is no level of BLEU", where="--levels", hint="numbers above 0 and up to 100, such as --levels 20,25,30"
            )
        found.add(level)
    return sorted(found)


def default_levels(bests: Sequence[float]) -> list[float]:
    """The best BLEU of the weakest system, which all reach, and shares of the best of all; rounded down to tenths."""
    if not bests:
        return []
    tenths = {math.floor(round(10 * level, 6)) for level in (min(bests), *(share * max(bests) for share in SHARES))}
    return sorted(tenth / 10 for tenth in tenths if tenth > 0)


def reach(measured: Sequence[tuple[int, float]], level: float) -> tuple[float | None, str]:
    """How many updates it took to reach a BLEU first.

    Args:
        measured: (updates, BLEU) of each validation, in order.
    Returns: updates, linear between the last validation below the level and the first that is not, and how they were found: FIRST, where the
        first validation was there already (its updates are an upper bound), or NEVER (updates None).
    """
    before: tuple[int, float] | None = None
    for step, bleu in measured:
        if bleu >= level:
            if before is None:
                return float(step), FIRST
            return before[0] + (level - before[1]) / (bleu - before[1]) * (step - before[0]), INTERPOLATED
        before = (step, bleu)
    return None, NEVER


def run(run: Run, systems: Sequence[str], *, set_names: Sequence[str] = (), levels: str = "") -> Finding:
    """The trainings of some systems on one axis.

    Args:
        run: the run; systems: the first that has a log is the one that others are compared with. set_names is of no use here.
        levels: of dev BLEU, separated by commas; "" = see `default_levels`.
    Raises: ConfigError for a set or a level that is none; DataError if no system has a log.
    """
    if set_names:
        raise ConfigError("a training is watched on the development set alone", where="--set-name", hint="leave it out")
    wanted = parse_levels(levels) if levels else []
    curves, ways = _read_all(run, systems)
    bests = {name: max(one.measured, key=lambda point: point[1]) for name, one in curves.items() if one.measured}
    if not levels:
        wanted = default_levels([bleu for _, bleu in bests.values()])
    base = next(iter(curves))
    rows: list[list[Any]] = []
    for level in wanted:
        counts = {name: reach(curves[name].measured, level) for name in bests}
        for name, (steps, how) in counts.items():
            compared = how == counts.get(base, (None, NEVER))[1] == INTERPOLATED
            ratio = steps / (counts[base][0] or math.nan) if compared and steps is not None else None
            rows.append(["level", level, name, *_place(curves[name], steps), ratio, None, how])
    for name, one in curves.items():
        looks = [look for look in one.dev if look.loss is not None or look.bleu is not None]
        if looks:
            best = max(looks, key=lambda look: (look.bleu if look.bleu is not None else -1.0, -(look.loss if look.loss is not None else math.inf)))
            rows.append(["best", best.bleu, name, *_place(one, best.step), None, best.loss, BEST])
    columns = _columns(base)
    if not any(one.timed for one in curves.values()):  # logs of earlier versions
        place = [column.key for column in columns].index("processor_minutes")
        columns.pop(place)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    return Finding(
        name="convergence",
        title="dev BLEU reached, by updates, epochs and training time",
        table=Table("convergence", "Updates, epochs and minutes of training to each dev BLEU", columns, rows, _notes(curves, ways, wanted)),
        text="Compare systems at one level: fewer updates there is faster learning, which a system with dearer updates may lose again in minutes; "
        "who is ahead at a low level need not be so at the best, and one training is one seed.",
        figure=figures.curves(panels(curves)) if figures.available() else None,
        bars=sparklines({name: one.measured for name, one in curves.items() if one.measured}),
        facts=_facts(curves, ways, wanted, bool(levels)),
        attachments={"curves.csv": curves_csv(curves)},
    )


def _read_all(run: Run, systems: Sequence[str]) -> tuple[dict[str, Curves], dict[str, tuple[Any, ...]]]:
    """The curves of each system that has some, and how its dev BLEU was measured: signatures, and how many dev sentences (0: all)."""
    curves: dict[str, Curves] = {}
    ways: dict[str, tuple[Any, ...]] = {}
    for name in systems:
        system = run.find_system(name)
        train = system.read_config().get("train", {})
        found = read(system.metrics, train.get("log_every"))
        if not found.train and not found.dev:
            console.say(f"'{name}' is left out: its log has no measurement yet")
            continue
        curves[name] = found
        if found.measured:
            ways[name] = (*dict.fromkeys(look.signature for look in found.dev if look.bleu is not None), train.get("dev_sentences", 0))
    if not curves:
        raise DataError("no training of this run has logged anything", where=run.path / "systems", hint="nmtkit train")
    if len(set(ways.values())) > 1 or any(len(way) > 2 for way in ways.values()):
        console.warn("dev BLEU was measured in several ways (see the facts in finding.json): its levels cannot be compared")
    return curves, ways


def _place(one: Curves, steps: float | None) -> list[float | None]:
    """Updates, epochs, minutes and processor minutes."""
    return [None] * 4 if steps is None else [steps, *one.epochs([steps]), *one.minutes([steps]), *one.processor_minutes([steps])]


def _columns(base: str) -> list[Column]:
    return [
        Column("point", "point", left=True),
        Column("bleu", "dev BLEU"),
        Column("system", "system", left=True),
        Column("updates", "updates", decimals=0),
        Column("epochs", "epochs"),
        Column("minutes", "minutes", decimals=1),
        Column("processor_minutes", "processor minutes", decimals=1),
        Column("ratio", f"updates, × {base}"),
        Column("dev_loss", "dev loss", decimals=3),
        Column("how", "how", left=True),
    ]


def _notes(curves: Mapping[str, Curves], ways: Mapping[str, tuple[Any, ...]], levels: Sequence[float]) -> list[str]:
    notes = [
        "reached: the first time, linear in updates between the validation before and the one that is there; "
        f"'{FIRST}': not later than that; '{NEVER}': not by the end of this training",
        "minutes: of updates alone, by the clock, as logged on the machine of each training; validation, saving and the time between a stop and a "
        "restart are not counted, an update made again after a restart counts once",
        *([_processor(curves)] if any(one.timed for one in curves.values()) else []),
        "dev BLEU: greedy search"
        + (f", {next(iter(ways.values()))[0]}" if len(set(ways.values())) == 1 else "")
        + "; dev loss and training loss: per target token, without label smoothing, training loss with dropout",
    ]
    if not ways:
        notes.append("no training here measured BLEU (train.dev_bleu), so there are no levels")
    elif not levels:
        notes.append("no training here has any BLEU to speak of, so there are no levels (--levels)")
    silent = [name for name in curves if curves[name].dev and name not in ways]
    if ways and silent:
        notes.append(f"without dev BLEU, so without levels: {', '.join(silent)}")
    if len(set(ways.values())) > 1 or any(len(way) > 2 for way in ways.values()):
        notes.append("dev BLEU was NOT measured in one way (facts in finding.json): its levels cannot be compared")
    notes += [
        f"{name}: the log has no line of {one.unlogged:,} updates (skipped ones, or lines lost)" for name, one in curves.items() if one.unlogged
    ]
    return notes


def _processor(curves: Mapping[str, Curves]) -> str:
    """What processor minutes are, and who has none."""
    without = [name for name, one in curves.items() if not one.timed]
    return (
        "processor minutes: of the same updates, what all threads of the training's first process worked: other work on the machine is not in them, "
        "nor is a GPU's" + (f"; not in the log of {', '.join(without)}" if without else "")
    )


def _facts(curves: Mapping[str, Curves], ways: Mapping[str, tuple[Any, ...]], levels: Sequence[float], given: bool) -> dict[str, Any]:
    measured = {
        name: {"signatures": list(way[:-1]), "dev_sentences": way[-1] or "all", "search": "greedy", "validations": len(curves[name].measured)}
        for name, way in ways.items()
    }
    ends = {
        name: dict(zip(("updates", "epochs", "minutes", "processor_minutes"), _place(one, one.train[-1].end if one.train else None), strict=True))
        | {"unlogged": one.unlogged}
        for name, one in curves.items()
    }
    shares = ", ".join(f"{share:g}" for share in SHARES)
    origin = "given" if given else f"the best of the weakest system, and {shares} of the best of all, rounded down to tenths"
    return {
        "levels": list(levels),
        "levels_from": origin,
        "interpolation": "linear in updates between neighbouring validations",
        "time": "updates alone: without validation, saving and pauses; minutes by the clock, processor_minutes of all threads of the first process",
        "dev_bleu": measured,
        "logged": ends,
    }


def panels(curves: Mapping[str, Curves]) -> list[list[Panel]]:
    """Loss above (training faint) and BLEU below, where measured, each over updates, epochs and minutes, where known."""
    rows: list[list[Panel]] = []
    for label, bleu in (("loss per target token (thin: training)", False), ("dev BLEU", True)):
        row = []
        for axis in ("updates", "epochs", "minutes"):
            drawn = [curve for name, one in curves.items() for curve in _drawn(name, one, axis, bleu)]
            row.append(Panel(axis, label, drawn))
        rows.append(row)
    rows = [row for row in rows if any(panel.curves for panel in row)] or rows[:1]
    known = [i for i in range(3) if any(row[i].curves for row in rows)] or [0]
    return [[row[i] for i in known] for row in rows]


def _drawn(name: str, one: Curves, axis: str, bleu: bool) -> list[Curve]:
    dev = one.measured if bleu else [(look.step, look.loss) for look in one.dev if look.loss is not None]
    train = [] if bleu else [(stretch.end, stretch.loss) for stretch in one.train if stretch.loss is not None]
    found = []
    for points, faint in ((train, True), (dev, False)):
        steps = [float(step) for step, _ in points]
        places = {"updates": lambda s: s, "epochs": one.epochs, "minutes": one.minutes}[axis](steps)
        known = [(x, y) for x, (_, y) in zip(places, points, strict=True) if x is not None]
        if known:
            found.append(Curve(name, [x for x, _ in known], [y for _, y in known], faint))
    return found


def sparklines(measured: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Dev BLEU over updates for a terminal: a line a system, all on one axis, from the first validation to the last."""
    if not measured:
        return ""
    last = max(points[-1][0] for points in measured.values())
    top = max(bleu for points in measured.values() for _, bleu in points) or 1.0
    width = max(map(len, measured))
    lines = []
    for name, points in measured.items():
        x, y = zip(*points, strict=True)
        places = [last * (i + 1) / PLACES for i in range(PLACES)]
        values = [np.interp(place, x, y) if x[0] <= place <= x[-1] else None for place in places]
        drawn = "".join(" " if value is None else BLOCKS[max(1, round(8 * value / top))] for value in values)
        lines.append(f"{name:>{width}} {drawn} best {max(y):.2f}")
    return "\n".join([f"dev BLEU, 0 to {top:.1f}, over {last:,} updates", *lines])


def curves_csv(curves: Mapping[str, Curves]) -> str:
    """Every point of every curve, to draw them elsewhere."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["system", "kind", "updates", "epochs", "minutes", "processor_minutes", "loss", "bleu"])
    for name, one in curves.items():
        points = [("train", s.end, s.loss, None) for s in one.train] + [("dev", look.step, look.loss, look.bleu) for look in one.dev]
        for kind, step, loss, bleu in points:
            writer.writerow([name, kind, *_place(one, step), loss, bleu])
    return stream.getvalue()
