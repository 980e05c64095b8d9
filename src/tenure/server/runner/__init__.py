"""Workers without database access: their claims, their leases, their messages."""
