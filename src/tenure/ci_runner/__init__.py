"""The CI runner: it takes jobs over the runner protocol and executes them in a sandbox."""
