"""The services that actions go to, each spoken to by a connector. `registry` finds and checks, `settings` reads the file of them."""
