"""Time rounds on request, inside the environment of each system; print a JSON line for each round.

The harness writes "go N", and the next N steps are timed. For a search it writes "translate BEAM".
Between rounds the process waits, so that systems take turns. This file needs only the standard
library, because the environments of other toolkits import it.
"""

import json
import os
import sys
import time
from pathlib import Path

SIDES = ("src_real", "src_all", "tgt_real", "tgt_all")
"""Numbers of tokens, without and with padding."""


def peak_bytes():
    """Return the peak resident memory of this process."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def settings():
    """Return the settings that the harness wrote for this process."""
    return json.loads(Path(sys.argv[1]).read_text("utf-8"))


class Rounds:
    """The answers to the harness. Everything else that a toolkit prints goes to stderr."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # messages of a toolkit must not mix with the answers
        self._left = 0
        self._answer = {}
        self._mark = self._cpu_mark = 0.0

    def say(self, **values):
        """Send a JSON line to the harness."""
        print(json.dumps(values), file=self._out, flush=True)

    def wait(self):
        """Return the words of the next request; end the process if there is none."""
        line = sys.stdin.readline()
        if not line.strip():
            sys.stdout.flush()
            os._exit(0)
        return line.split()

    def serve(self, translate, ids=list):
        """Translate at each request; send the time and the ids of the translations.

        Args:
            translate: translates with a beam of the given width.
            ids: turns the result of `translate` into ids. Its time does not count.
        """
        while True:
            _, beam = self.wait()
            start, cpu = time.perf_counter(), time.process_time()
            translations = translate(int(beam))
            seconds, used = time.perf_counter() - start, time.process_time() - cpu
            self.say(seconds=seconds, cpu=used, hypotheses=ids(translations), peak=peak_bytes())

    def before_step(self):
        """Call before each step: send the answer of a finished round, and wait for the next request."""
        if self._left:
            return
        if self._answer:
            self.say(**self._answer, peak=peak_bytes())
        self._left = int(self.wait()[1])
        self._answer = {"tokens": [], "seconds": [], "cpu": [], **dict.fromkeys(SIDES, 0)}
        self._mark, self._cpu_mark = time.perf_counter(), time.process_time()

    def after_step(self, src_real, src_all, tgt_real, tgt_all):
        """Call after each step with its numbers of tokens, without and with padding. The time of a
        step begins at the end of the last step, so it includes loading.
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
    """Return lines of subwords as lists of ids that end in </s>."""
    return [
        [ids.get(word, unknown) for word in line.split()] + [end]
        for line in Path(path).read_text("utf-8").split("\n")[:-1]
    ]


def write_words(s, frequency=""):
    """Write the vocabulary without the special tokens for another toolkit; return the folder."""
    tokens = [*read_vocabulary(Path(s["corpus"], "vocab.txt"))][4:]
    folder = Path(s["scratch"])
    folder.joinpath("vocab.txt").write_text("".join(f"{t}{frequency}\n" for t in tokens), "utf-8")
    return folder


def read_vocabulary(path):
    """Return token -> id."""
    return {token: i for i, token in enumerate(Path(path).read_text("utf-8").split("\n")[:-1])}
