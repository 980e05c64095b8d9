"""Telling others by webhooks: notices from the feed, delivered in order and at least once."""

from tenure.publish.dispatcher import Publisher
from tenure.publish.targets import Reach, check_url

__all__ = ["Publisher", "Reach", "check_url"]
