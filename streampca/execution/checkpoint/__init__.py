"""Checkpoints: completed passes and the state of the current one, from which a stopped fit resumes."""
