"""Reads of published documents: the status of runs, the inbox, proposals and events, without a database."""
