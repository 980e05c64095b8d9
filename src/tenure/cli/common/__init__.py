"""What all commands share: console, options, the way to a database or a server."""
