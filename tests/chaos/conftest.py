"""Both stores, and a folder for notes: the same as for the workers' stories."""

from tests.worker.conftest import folder, url

__all__ = ["folder", "url"]
