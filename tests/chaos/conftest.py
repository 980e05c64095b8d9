"""The fixtures of the worker tests: both stores, and a folder for notes."""

from tests.worker.conftest import folder, url

__all__ = ["folder", "url"]
