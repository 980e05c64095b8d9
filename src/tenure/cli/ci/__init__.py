"""`tenure ci`: pipelines, plans, runners and reports."""
