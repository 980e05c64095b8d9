"""Helpers for developing Tenure itself: the tests, the bench and the demo use them, the product never does."""
