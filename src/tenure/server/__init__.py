"""Tenure as a service: HTTP over one engine. `app.py` puts it together, `routes/` has a module per subject."""
