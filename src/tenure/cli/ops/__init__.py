"""Commands that serve, migrate and check an installation."""
