"""The command line, `tenure`: a folder for each group of commands, and `common` for options, backends and output."""
