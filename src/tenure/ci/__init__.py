"""Delta CI: the settings of repositories, pipelines of a commit, and the plan of what a change needs."""
