"""Commands for people who write workflows, runners or Tenure itself."""
