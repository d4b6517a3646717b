"""Timed rounds on request, one JSON line a round, inside the environment of each system.

The harness writes "go N"; the next N steps (or sentences) are timed and reported; in between the
process waits, so that systems take turns. Nothing but the standard library: this file is imported
by other toolkits' environments.
"""

import json
import os
import sys
import time
from pathlib import Path

SIDES = ("src_real", "src_all", "tgt_real", "tgt_all")
"""Numbers of tokens, without and with padding."""


def peak_bytes():
    """The largest resident size of this process and of the children it waits for."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def settings():
    """The settings that the harness has written for this process."""
    return json.loads(Path(sys.argv[1]).read_text("utf-8"))


class Rounds:
    """Answers the harness; everything else that a toolkit prints goes to stderr."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # a toolkit's own chatter must not mix with the answers
        self._left = 0
        self._answer = {}
        self._mark = self._cpu_mark = 0.0

    def say(self, **values):
        """One JSON line to the harness."""
        print(json.dumps(values), file=self._out, flush=True)

    def wait(self):
        """The next request of the harness as words; the process ends when there is none."""
        line = sys.stdin.readline()
        if not line.strip():
            sys.stdout.flush()
            os._exit(0)
        return line.split()

    def serve(self, translate, ids=list):
        """Translate whenever the harness asks; report the time, and the ids of the translations.

        Args:
            translate: takes the beam; ids: takes what it returns, outside the time.
        """
        while True:
            _, beam = self.wait()
            start, cpu = time.perf_counter(), time.process_time()
            found = translate(int(beam))
            seconds, used = time.perf_counter() - start, time.process_time() - cpu
            self.say(seconds=seconds, cpu=used, hypotheses=ids(found), peak=peak_bytes())

    def before_step(self):
        """Call before each step: reports a finished round, and waits for the next one."""
        if self._left:
            return
        if self._answer:
            self.say(**self._answer, peak=peak_bytes())
        self._left = int(self.wait()[1])
        self._answer = {"tokens": [], "seconds": [], "cpu": [], **dict.fromkeys(SIDES, 0)}
        self._mark, self._cpu_mark = time.perf_counter(), time.process_time()

    def after_step(self, src_real, src_all, tgt_real, tgt_all):
        """Call after each step with its real and its padded numbers of tokens; the time since
        the last step (loading included) is its time.
        """
        now, cpu = time.perf_counter(), time.process_time()
        answer = self._answer
        answer["tokens"].append(int(tgt_real))
        answer["seconds"].append(now - self._mark)
        answer["cpu"].append(cpu - self._cpu_mark)
        for key, value in zip(SIDES, (src_real, src_all, tgt_real, tgt_all), strict=True):
            answer[key] += int(value)
        self._mark, self._cpu_mark = now, cpu
        self._left -= 1


def read_ids(path, ids, unknown=3, end=2):
    """Lines of subwords as lists of ids ending in </s>."""
    return [
        [ids.get(word, unknown) for word in line.split()] + [end]
        for line in Path(path).read_text("utf-8").split("\n")[:-1]
    ]


def write_words(s, frequency=""):
    """Write the subwords without the specials, as another toolkit reads them; return the folder."""
    tokens = [*read_vocabulary(Path(s["corpus"], "vocab.txt"))][4:]
    folder = Path(s["scratch"])
    folder.joinpath("vocab.txt").write_text("".join(f"{t}{frequency}\n" for t in tokens), "utf-8")
    return folder


def read_vocabulary(path):
    """Tokens to ids."""
    return {token: i for i, token in enumerate(Path(path).read_text("utf-8").split("\n")[:-1])}
