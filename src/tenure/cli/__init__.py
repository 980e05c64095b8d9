"""The command line: `tenure …`. It asks the layers below and prints; it decides nothing."""
