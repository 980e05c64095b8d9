"""Commands for tenants, people, clients and keys."""
