"""YAML with positions, CEL expressions with limits on work and memory, and JSON Schema."""
