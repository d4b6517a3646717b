"""Training: updates of the weights, and everything that keeps a long run safe."""
