"""The distinct layer that each layer uses, as in the figures of Takase & Kiyono 2023."""

import pytest

from nmtkit.nn.sharing import distinct_layer

FIGURES = [
    ("sequence", 3, 6, "112233"),
    ("cycle", 3, 6, "123123"),
    ("cycle-rev", 3, 6, "123321"),
    ("sequence", 2, 6, "111222"),
    ("cycle", 2, 6, "121212"),
    ("cycle-rev", 2, 6, "121221"),
    ("cycle-rev", 3, 9, "123123321"),
    ("sequence", 6, 12, "112233445566"),
    ("cycle-rev", 6, 12, "123456654321"),
    ("sequence", 1, 4, "1111"),
    ("cycle-rev", 1, 4, "1111"),
    # N is not a multiple of M: the paper's formulas.
    ("sequence", 2, 5, "11122"),
    ("cycle", 2, 5, "12121"),
    ("cycle-rev", 2, 5, "12112"),
]


@pytest.mark.parametrize(("share", "distinct", "layers", "expected"), FIGURES)
def test_layers_use_distinct_layers_as_in_the_figures(share, distinct, layers, expected):
    found = [distinct_layer(i, layers, distinct, share) + 1 for i in range(layers)]
    assert "".join(map(str, found)) == expected


@pytest.mark.parametrize("share", ["sequence", "cycle", "cycle-rev"])
def test_every_distinct_layer_is_used(share):
    for layers in range(1, 14):
        for distinct in range(1, layers + 1):
            found = {distinct_layer(i, layers, distinct, share) for i in range(layers)}
            assert found == set(range(distinct))
