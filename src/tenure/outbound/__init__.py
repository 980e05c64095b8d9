"""Requests to other services: which addresses and URLs they may reach, and how they are sent."""
