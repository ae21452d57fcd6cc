"""Plan, memory, and the execution of leaves."""
