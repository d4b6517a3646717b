"""Reading the real data beside the checkout."""

import gzip
import lzma
import re
from pathlib import Path


def lines(path: Path) -> list[str]:
    """Lines of a file, split at LF only; .gz and .xz (also where only PATH.xz exists) are
    decompressed.
    """
    if not path.exists():
        path = path.with_name(path.name + ".xz")
    data = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)(
        path.read_bytes()
    )
    return data.decode("utf-8").split("\n")[:-1]


def segments(path: Path) -> list[str]:
    """The <seg> texts of an IWSLT XML file as they stand, outer spaces removed."""
    found = (re.match(r'\s*<seg id="?\d+"?>(.*)</seg>', line) for line in lines(path))
    return [match[1].strip() for match in found if match]
