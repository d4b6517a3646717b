"""Measurements for analyses: recorded attention, contrastive sets, probing files, costs."""
