"""Stores: one contract (`port.py`), two databases. SQL here fetches and saves; it holds no policy."""
