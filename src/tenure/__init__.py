"""Tenure: a durable run orchestrator for Python."""
