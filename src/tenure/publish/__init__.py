"""Webhooks from the feed, and approval cards in Slack."""

from tenure.publish.webhook_dispatcher import WebhookDispatcher, check_url

__all__ = ["WebhookDispatcher", "check_url"]
