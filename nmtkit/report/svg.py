"""Figures as part of a page: SVG in which nothing runs or loads, and no id is that of another
figure.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
DRAWN = re.compile(
    "svg|g|defs|path|use|text|tspan|rect|circle|ellipse|line|polyline|polygon|clipPath|title|desc|"
    "marker|pattern|linearGradient|radialGradient|stop|symbol|mask|image"
)
"""The elements that a figure may have. A style sheet would apply to the whole page."""
ACTIVE = re.compile(
    r"url\((?!#)|image-set|src\(|javascript:|@import|expression\(|position|\\", re.I
)
"""Attribute values that load or run something, position it elsewhere, or hide this in escapes."""
LEAST = 0.85
"""A figure may shrink to this part of its size. If it were smaller, its text could not be read."""
GROUND = re.compile(r"patch_\d+")
"""The ids of groups that hold a figure's background, as matplotlib names them."""


def inline(text: str, prefix: str, label: str) -> str | None:
    """Return a figure as an element of a page; None if the text is no SVG.

    Scripts, handlers, foreign elements and references to other files are left out, whoever wrote
    the file. White backgrounds are left out and black lines get the colour of the page's text, so
    that the figure also fits a dark page.

    Args:
        text: SVG, as matplotlib writes it.
        prefix: put before every id, so that no two figures of a page share an id.
        label: what the figure shows, for screen readers.
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
    # The last two attributes replace matplotlib's style sheet, which would apply to the whole page.
    root.attrib |= {
        "role": "img",
        "aria-label": label,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, prefix: str, ground: bool = False) -> None:
    """Remove what may not be on a page from an element and all elements in it; prefix its ids, and
    give it the colours of the page.

    Args:
        ground: True in a figure's background.
    """
    ground = ground or GROUND.fullmatch(element.get("id", "")) is not None
    for child in list(element):
        name = child.tag.removeprefix(f"{{{SVG}}}") if isinstance(child.tag, str) else ""
        # A foreign tag begins with its namespace. The content of a title would be read as HTML.
        if DRAWN.fullmatch(name) and not element.tag.endswith(("}title", "}desc")):
            _clean(child, prefix, ground)
        else:
            element.remove(child)
    for key, value in list(element.attrib.items()):
        name = key.rpartition("}")[2].lower()
        outside = name == "href" and not re.match(r"#|data:image/(png|jpeg);base64,", value)
        if outside or name.startswith(("on", "src")) or ACTIVE.search(value):
            del element.attrib[key]
            continue
        if name == "id":
            value = prefix + value
        elif name == "href" and value.startswith("#"):
            value = "#" + prefix + value[1:]
        value = value.replace("url(#", f"url(#{prefix}")
        if name == "style":
            value = value.replace("stroke: #000000", "stroke: currentColor")
            value = value.replace("fill: #ffffff", "fill: none") if ground else value
        element.set(key, value)
