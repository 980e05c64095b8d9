"""`tenure ci`: pipelines, plans and runners."""
