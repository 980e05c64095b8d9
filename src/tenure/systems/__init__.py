"""`tenure up`: the five systems of the source documents, each started whole and played to its end."""
