"""Documents of agent runs, published from the feed for readers without a database."""

from tenure.publish.documents.publisher import DocumentPublisher

__all__ = ["DocumentPublisher"]
