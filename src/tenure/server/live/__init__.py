"""Live status: the end of the feed, and those who listen."""
