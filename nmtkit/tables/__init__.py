"""Tables and figures: the one place where results are printed and drawn."""
