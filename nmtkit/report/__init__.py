"""The report: what a run's stages have found, as one page that needs nothing beside itself."""
