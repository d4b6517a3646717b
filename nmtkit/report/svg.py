"""Figures as part of a page: SVG with nothing in it that runs, loads, or clashes with another
figure's names.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
DRAWN = re.compile(
    "svg|g|defs|path|use|text|tspan|rect|circle|ellipse|line|polyline|polygon|clipPath|title|desc|"
    "marker|pattern|linearGradient|radialGradient|stop|symbol|mask|image"
)
"""The elements that a figure may have; a style sheet would be one of the whole page."""
ACTIVE = re.compile(
    r"url\((?!#)|image-set|src\(|javascript:|@import|expression\(|position|\\", re.I
)
"""Attribute values that load or run something, leave the figure's place, or hide it in escapes."""
LEAST = 0.85
"""Part of its size to which a figure may shrink: with less, its text could not be read."""
GROUND = re.compile(r"patch_\d+")
"""The ids of groups that hold a figure's background, as matplotlib names them."""


def inline(text: str, prefix: str, label: str) -> str | None:
    """Return a figure as an element of a page; None if the text is no SVG.

    Scripts, handlers, foreign elements and references to anything outside are left out, whoever
    wrote the file. White grounds are left out and black lines have the text's colour, so that it is
    a part of a dark page too.

    Args:
        text: SVG, as matplotlib writes it.
        prefix: put before every id, so that no two figures of a page share one.
        label: what the figure shows, for those who do not see it.
    Returns: the element; None if the text is no SVG.
    """
    if "<!ENTITY" in text:
        return None
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    try:
        root = ElementTree.fromstring(text)
        _clean(root, prefix)
    except (ElementTree.ParseError, RecursionError):
        return None
    if root.tag != f"{{{SVG}}}svg":
        return None
    width = root.get("width", "")
    for key in root.attrib.keys() - {"viewBox", "version"}:
        del root.attrib[key]
    if match := re.fullmatch(r"(\d+\.?\d*)(pt|px)?", width):
        size, unit = float(match[1]), match[2] or "px"
        root.set("style", f"width: {size:g}{unit}; min-width: {LEAST * size:g}{unit}")
    # Two attributes for matplotlib's style sheet, which would be of the whole page.
    root.attrib |= {
        "role": "img",
        "aria-label": label,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str, ground: bool = False) -> None:
    """Clean an element and all below it; ground: True if it is part of a figure's background."""
    ground = ground or GROUND.fullmatch(element.get("id", "")) is not None
    for child in list(element):
        name = child.tag.removeprefix(f"{{{SVG}}}") if isinstance(child.tag, str) else ""
        # A foreign tag has another namespace as its part; HTML reads what is in a title as HTML.
        if DRAWN.fullmatch(name) and not element.tag.endswith(("}title", "}desc")):
            _clean(child, prefix, ground)
        else:
            element.remove(child)
    for key, value in list(element.attrib.items()):
        name = key.rpartition("}")[2].lower()
        outside = name == "href" and not re.match(r"#|data:image/(png|jpeg);base64,", value)
        if outside or name.startswith(("on", "src")) or ACTIVE.search(value):
            del element.attrib[key]
        else:
            element.set(key, _own(name, value, prefix, ground))


def _own(name: str, value: str, prefix: str, ground: bool) -> str:
    """Return an attribute's value with the ids of this figure and the colours of the page."""
    if name == "id":
        value = prefix + value
    elif name == "href" and value.startswith("#"):
        value = "#" + prefix + value[1:]
    value = value.replace("url(#", f"url(#{prefix}")
    if name == "style":
        value = value.replace("stroke: #000000", "stroke: currentColor")
        value = value.replace("fill: #ffffff", "fill: none") if ground else value
    return value
