"""Commands for CI."""
