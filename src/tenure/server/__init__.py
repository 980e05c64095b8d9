"""Tenure as a service: HTTP over one engine. `app.py` puts it together; a folder per subject, `routes/` in front of them."""
