"""Watching the server: metrics, log events, spans."""
