"""nmtkit: four claims about the neural translation model, trained and compared under equal conditions."""

__version__ = "0.1.0"
