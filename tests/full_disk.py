"""Simulate a full disk."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(room=0):
    """The kernel refuses every file of more than `room` bytes, whoever writes the file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
