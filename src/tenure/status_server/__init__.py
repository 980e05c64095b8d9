"""Serves the documents that the publisher has written, without a way to the database."""
