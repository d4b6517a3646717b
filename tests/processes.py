"""Run Python code in a new process."""

import subprocess
import sys


def python(*arguments, **options):
    """Run Python with these arguments; return the process with what it wrote.

    Args:
        options: of subprocess.run; they win.
    """
    usual = {"capture_output": True, "text": True, "check": False}
    return subprocess.run([sys.executable, *arguments], **usual | options)
