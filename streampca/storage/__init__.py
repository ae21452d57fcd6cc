"""Files and directories that are complete or absent, locks, scratch space, signals, and states as files."""
