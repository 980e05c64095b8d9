"""Commands for evidence, ledgers and signing keys."""
