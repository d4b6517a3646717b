"""What analyses measure with: recorded attention, contrastive sets, probing files, learning curves,
costs.
"""
