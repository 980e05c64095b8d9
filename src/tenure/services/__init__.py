"""The application: what can be done with runs, approvals, workflows, people and policies, one module per noun."""
