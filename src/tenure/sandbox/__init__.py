"""Programs that nobody trusts: namespaces, limits, and a network of named hosts."""
