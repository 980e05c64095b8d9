"""Commands that start, show, watch and control runs."""
