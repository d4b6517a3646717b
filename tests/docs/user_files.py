"""Write files of a user with typical defects: an empty side, a long line, odd characters, …"""

from pathlib import Path

from nmtkit.demo import generate

DOCUMENT = 4
"""Lines of a document of the test set."""


def write_user_files(folder: Path) -> None:
    """Write train, dev and test in English and German, with documents and a second reference."""
    generate(folder / "demo", size=300, seed=1)

    def lines(name: str) -> list[str]:
        return (folder / "demo" / name).read_text("utf-8").splitlines()

    def write(name: str, text: list[str]) -> None:
        (folder / name).write_text("".join(line + "\n" for line in text), "utf-8", newline="\n")

    src, tgt = lines("train.en"), lines("train.de")
    tgt[10] = ""
    src[20] = " ".join(src[20:80])
    src[30], tgt[30] = "Yes.", " ".join(tgt[30:34])
    src[40] += "\r"
    tgt[50] = tgt[50].replace(" ", "\u2028", 1)
    write("train.en", src)
    write("train.de", tgt)
    write("shifted.de", tgt[:100] + tgt[101:])
    write("train.docids", [f"talk-{number // 10}" for number in range(len(src))])
    for name in ("dev", "test"):
        for side in ("en", "de"):
            write(f"{name}.{side}", lines(f"{name}.{side}")[:48])
    write("test.de1", [line.replace(" aber ", " doch ") for line in lines("test.de")[:48]])
    write("test.starts", [str(number) for number in range(0, 48, DOCUMENT)])
