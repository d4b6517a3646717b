"""Prepare the corpus of the benchmarks: Multi30k English-German with `nmtkit prep`, and the same
subwords as text for other toolkits.

python tests/benchmarks/corpus.py FOLDER [--from-dir RAW]

It writes FOLDER/run, FOLDER/{train,dev,test}.{src,tgt}, FOLDER/vocab.txt and FOLDER/reference.txt.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import arguments

from nmtkit.data.store import Store
from nmtkit.text.vocabulary import Vocabulary

SETS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}


def export(run: Path, folder: Path) -> None:
    """Write the prepared ids as lines of subwords, without </s>."""
    vocabulary = Vocabulary.load(run / "prep" / "vocab.txt")
    stores = {path.parent.name: path.parent for path in (run / "prep").glob("*/00000.bin")}
    for name, wanted in SETS.items():
        store = Store(stores[wanted if wanted in stores else name])
        for side, item in (("src", store.src), ("tgt", store.tgt)):
            lines = (
                " ".join(vocabulary[int(i)] for i in item(pair)[:-1]) + "\n"
                for pair in range(len(store))
            )
            (folder / f"{name}.{side}").write_text("".join(lines), "utf-8")
    shutil.copy(run / "prep" / "vocab.txt", folder / "vocab.txt")
    shutil.copy(next((run / "prep" / "text").glob(f"{SETS['test']}.ref")), folder / "reference.txt")


def main() -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--from-dir", help="folder with the raw files of Multi30k; without it they are downloaded"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    run = args.folder / "run"
    options = ["--run", run, "--set", "prep.merges=8000"]
    options += ["--from-dir", args.from_dir] if args.from_dir else []
    subprocess.run(arguments.nmtkit("prep", "multi30k-ende", *options), check=True)
    export(run, args.folder)


if __name__ == "__main__":
    main()
