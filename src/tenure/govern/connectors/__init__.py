"""The connectors to other services. `registry` finds and checks them, `settings` reads their file."""
