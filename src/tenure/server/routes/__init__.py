"""The routes, a module per subject; each has its `HANDLERS`, and `app.py` lists the modules."""
