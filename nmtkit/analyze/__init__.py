"""What the systems do inside: one file an analysis, one table that lists them."""

ANALYSES: dict[str, str] = {
    "lengths": "nmtkit.analyze.lengths:Lengths",
    "cost": "nmtkit.analyze.cost:Cost",
    "agreement": "nmtkit.analyze.agreement:Agreement",
    "divergence": "nmtkit.analyze.divergence:Divergence",
    "layers": "nmtkit.analyze.layers:Layers",
    "alignment": "nmtkit.analyze.alignment:Alignment",
    "attention": "nmtkit.analyze.attention:Attention",
    "importance": "nmtkit.analyze.importance:Importance",
    "gates": "nmtkit.analyze.gates:Gates",
    "weights": "nmtkit.analyze.weights:Weights",
    "convergence": "nmtkit.analyze.convergence:Convergence",
    "context": "nmtkit.analyze.context:Context",
    "examples": "nmtkit.analyze.examples:Examples",
    "phrases": "nmtkit.analyze.phrases:Phrases",
    "probing": "nmtkit.analyze.probing:Probing",
}
"""Every analysis by name, in the order of the list: where its class is. A new analysis is one file and one line here."""
