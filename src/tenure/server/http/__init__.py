"""HTTP itself: bytes, bounds, the routes that are asked most, and the document of all of them."""
