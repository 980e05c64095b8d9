"""Workers without database access: their registration, their claims, their leases and the messages about them."""
