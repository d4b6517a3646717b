"""What several analyses need: recorded attention, contrastive sets, probing files, learning
curves, costs.
"""
