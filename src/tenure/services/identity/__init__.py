"""Who asks, and whether they may: tenants, clients, people, keys, sessions and the table of roles."""
