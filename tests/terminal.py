"""Make stderr of this process a terminal."""

import os
import pty
import sys
import threading
from contextlib import contextmanager


@contextmanager
def terminal(monkeypatch):
    """Make stderr a terminal of 80 columns; yield a list that gets all output at the end."""
    primary, secondary = pty.openpty()
    sent, parts = [], []

    def read():
        while True:
            try:
                parts.append(os.read(primary, 65536))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=read)
    with monkeypatch.context() as patch, os.fdopen(secondary, "w") as stream:
        patch.setattr(sys, "stderr", stream)
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "xterm")
        reader.start()
        yield sent
    reader.join(10)
    os.close(primary)
    sent.append(b"".join(parts).decode())
