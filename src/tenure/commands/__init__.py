"""Running programs: a command as a process, what it may see, and the launcher that confines it."""
