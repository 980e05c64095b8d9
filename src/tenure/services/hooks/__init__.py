"""Hooks: their registry, the verification of signatures, parsing of events, rules, and the intake of deliveries."""
