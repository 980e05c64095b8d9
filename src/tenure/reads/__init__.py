"""The read side: queries that fill the shapes."""
