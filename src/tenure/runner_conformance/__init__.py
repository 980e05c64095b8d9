"""A test suite for runners: situations a runner of any language must handle."""
