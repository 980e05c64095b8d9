"""The fixtures of the publisher's tests."""

from tests.publish.conftest import bucket, kind, place, sqlite_url, url

__all__ = ["bucket", "kind", "place", "sqlite_url", "url"]
